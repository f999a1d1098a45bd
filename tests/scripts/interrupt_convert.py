"""Ctrl-C while convert or merge writes leaves nothing and ends as the signal does, with a sentence;
what a killed one left goes when the same name is written again."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
GOLDEN = pathlib.Path(os.environ.get("FAULTLINE_SOURCE_DIR", ".")) / "tests/golden"
LAYERS, WIDTH, VOCABULARY, POSITIONS = 12, 512, 48, 32  # 150 MB, which take a while to write
TRIES = 10  # a machine may be so busy that the command is done before the signal is sent
wrong = []


def write_zeros(path, shapes):
    """A safetensors file of zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, size = end, 4
        for length in shape:
            size *= length
        end += size
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_model(folder):
    shapes = {"wte.weight": [VOCABULARY, WIDTH], "wpe.weight": [POSITIONS, WIDTH]}
    linear = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    norms = ["ln_f"]
    for layer in range(LAYERS):
        norms += [f"h.{layer}.ln_1", f"h.{layer}.ln_2"]
        for name, (rows, columns) in linear.items():
            shapes[f"h.{layer}.{name}.weight"] = [rows * WIDTH, columns * WIDTH]
            shapes[f"h.{layer}.{name}.bias"] = [columns * WIDTH]
    for name in norms:
        shapes |= {f"{name}.weight": [WIDTH], f"{name}.bias": [WIDTH]}
    folder.mkdir()
    write_zeros(folder / "model.safetensors", shapes)
    config = json.loads((GOLDEN / "hf_gpt2/config.json").read_text())
    config |= {"n_layer": LAYERS, "n_embd": WIDTH, "n_positions": POSITIONS, "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(config))


def write_adapter(folder):
    names = {f"base_model.model.transformer.h.{layer}.attn.c_attn.": layer for layer in range(LAYERS)}
    shapes = {name + "lora_A.weight": [1, WIDTH] for name in names}
    shapes |= {name + "lora_B.weight": [3 * WIDTH, 1] for name in names}
    folder.mkdir()
    write_zeros(folder / "adapter_model.safetensors", shapes)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["c_attn"], "fan_in_fan_out": True}))


def partial(target):
    return list(target.parent.glob(f".{target.name}.partial-*"))


def stop_while_writing(arguments, target, number):
    """Sends the signal once the command writes; returns its exit code and standard error."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not partial(target):
        pass
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    return process.returncode, error


def stopped(arguments, target, number):
    for _ in range(TRIES):
        code, error = stop_while_writing(arguments, target, number)
        if code != 0:
            return code, error
        subprocess.run(["rm", "-r", target], check=True)
    sys.exit(f"{arguments} was never stopped")


with tempfile.TemporaryDirectory() as scratch:
    d = pathlib.Path(scratch)
    write_model(d / "model")
    write_adapter(d / "adapter")
    target = d / "target"
    commands = [["convert", d / "model", target], ["convert", d / "model", target, "--to", "hf"],
                ["merge", d / "model", "--adapter", d / "adapter", "--out", target]]
    for command in commands:
        for number in (signal.SIGINT, signal.SIGTERM):
            code, error = stopped(command, target, number)
            if code != -number or error != "faultline: interrupted; nothing was written\n":
                wrong.append(f"{command}: exit {code}: {error}")
            if target.exists() or partial(target):
                wrong.append(f"{command}: left {sorted(d.iterdir())}")

    stopped(commands[0], target, signal.SIGKILL)
    if not partial(target):
        wrong.append("a killed convert leaves nothing, so this test tests nothing")
    subprocess.run([BINARY, *map(str, commands[0])], check=True, stdout=subprocess.DEVNULL)
    if partial(target):
        wrong.append(f"what a killed convert left is still there: {partial(target)}")
if wrong:
    sys.exit("\n".join(wrong))
print("stopped commands leave nothing")
