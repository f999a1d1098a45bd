"""What the command line takes of an adapter and of a model's name: --lora, several --adapter, a preset and
a run of the same name; what --watch deep says of a text; and how a wrong flag is refused."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
wrong = []


def run(*arguments, at=None):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, cwd=at)


def expect(condition, text):
    if not condition:
        wrong.append(text)


def done(*arguments, at=None):
    ran = run(*arguments, at=at)
    expect(ran.returncode == 0, f"{' '.join(map(str, arguments))}: exit {ran.returncode}: {ran.stderr[-300:]}")
    return ran.stdout


def refused(said, *arguments, at=None):
    ran = run(*arguments, at=at)
    line = ran.stderr.strip()
    expect(ran.returncode == 2 and "\n" not in line and said in line,
           f"{' '.join(map(str, arguments))}: exit {ran.returncode}: {line[-300:]}")


def without_checksum(adapter, copy):
    """A copy as PEFT would have written it: nothing says which weights it was trained over."""
    shutil.copytree(adapter, copy)
    file = copy / "adapter_model.safetensors"
    content = file.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    header.pop("__metadata__")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[begin:])


with tempfile.TemporaryDirectory() as scratch:
    d = pathlib.Path(scratch)
    text = d / "text.txt"
    text.write_text("In the beginning was the word, and the word was light. " * 200)
    data = ["--data", text]

    # A preset wins over a folder of its name, with and without an adapter; ./tiny is the folder.
    done("train", "tiny", "--steps", 5, *data, "--out", "tiny", at=d)
    done("train", "tiny", "--steps", 1, *data, "--out", "preset", at=d)
    done("train", "tiny", "--steps", 1, *data, "--out", "fresh", "--lora", "r=2", at=d)
    expect((d / "fresh/base.safetensors").read_bytes() != b"", "fresh has a base")
    done("train", "--resume", "tiny", "--steps", 6, *data, at=d)
    done("train", "tiny", "--resume", "tiny", "--steps", 7, *data, at=d)
    done("train", "./tiny", "--steps", 40, *data, "--out", "first", "--lora", "r=4,alpha=8", "--lr", 0.02, at=d)
    expect((d / "first/base.safetensors").read_bytes() != (d / "fresh/base.safetensors").read_bytes(),
           "an adapter of the preset was trained over the run of its name")
    refused("'./tiny' is a run", "train", "./tiny", "--steps", 3, *data, "--out", "more", at=d)

    # What --lora refuses, before anything is written.
    tune = ["train", d / "tiny", "--steps", 1, *data, "--out", d / "none"]
    refused("--lora is empty", *tune, "--lora", "")
    refused("--lora is empty", "bench", "tiny", "--lora", "")
    refused("r is given twice", *tune, "--lora", "r=4,r=8")
    refused("targets and regex", *tune, "--lora", "r=4,targets=c_attn,regex=.*c_fc")
    refused("rank 1000000000 (r or rank_pattern) is above 32", *tune, "--lora", "r=1000000000")
    refused("matches the end of no layer", *tune, "--lora", "r=4,rank_pattern=c_attm:2")
    expect(not (d / "none").exists(), "a refused run left a directory")

    # Ranks and alphas of their own are in PEFT's file.
    done("train", d / "tiny", "--steps", 40, *data, "--out", d / "second", "--lr", 0.02,
         "--lora", "r=4,rank_pattern=c_attn:2+c_proj:3,alpha_pattern=c_fc:16")
    saved = json.loads((d / "second/adapter/adapter_config.json").read_text())
    expect(saved["rank_pattern"] == {"c_attn": 2, "c_proj": 3} and saved["alpha_pattern"] == {"c_fc": 16}, saved)

    # Two adapters together say what merging one after the other says.
    first, second = d / "first/adapter", d / "second/adapter"
    done("merge", d / "tiny", "--adapter", first, "--out", d / "one")
    refused("was trained over other weights", "merge", d / "one", "--adapter", second, "--out", d / "two")
    without_checksum(second, d / "plain")
    done("merge", d / "one", "--adapter", d / "plain", "--out", d / "two")
    done("merge", d / "tiny", "--adapter", first, "--adapter", second, "--out", d / "both")
    ask = ["--prompt", "In the beginning ", "--tokens", 24, "--temperature", 0, "--json", "-"]

    def said(*arguments):
        return json.loads(done("generate", *arguments, *ask) or "{}")

    together = said(d / "tiny", "--adapter", first, "--adapter", second)
    for directory in ("two", "both"):
        expect(said(d / directory).get("tokens") == together.get("tokens"), f"{directory} says something else")
    refused("named twice", "generate", d / "tiny", "--adapter", first, "--adapter", first, "--prompt", "x")

    # --watch deep says what each adapter adds, and that the cache is not what repeats.
    deep = said(d / "tiny", "--adapter", first, "--adapter", second, "--watch", "deep")
    layers = deep.get("adapters", [])
    expect(len(layers) == 16 and {row["adapter"] for row in layers} == {"default", "adapter-2"}, layers)
    expect(layers and layers[0]["layer"] == "transformer.h.0.attn.c_attn", layers)
    expect(all(0 < row["ratio"] < 100 and row["delta_norm"] > 0 for row in layers), layers)
    repetition = deep.get("repetition", {})
    expect(repetition.get("origin") == "data" and repetition.get("place") == "nowhere", repetition)
    # 17 bytes of the prompt and 24 new ones are more than the 32 positions.
    expect(repetition.get("tokens") == [9, 41], repetition)
    expect("what repeats was learned" in done("generate", d / "tiny", *ask[:4], "--watch", "deep"), "no report")
    expect("adapters" not in together, "a report that nobody asked for")

    # Flags.
    ask = ["generate", d / "tiny", "--prompt", "x"]
    refused("'0' is none of on, off, and a page's number of tokens from 1 to 4096", *ask, "--kv-pages", 0)
    refused("'f8' is none of f32, f16, bf16, off", *ask, "--kv-cache", "f8")
    refused("--tokens needs a value", *ask, "--tokens")
    refused("--steps is given more than once", "train", "tiny", "--steps", 1, "--steps", 2)
    for said_of, *arguments in (("faultline train --help", "train", "--unknown"),
                                ("faultline lab --list", "train", "tiny", "--fault", "nosuch", "--out", d / "none"),
                                ("did you mean 'lora.scale'", "lab", "lora.scal")):
        refused(said_of, *arguments)
    expect("--run-case" not in run("lab", "--unknown").stderr, "a hidden flag is offered")
    expect("nearest" not in run("train", "--unknown").stderr, "a name that is not near is offered")

    # Rotary scaling of a run comes back from the folder that it becomes.
    scaling = {"rope_type": "linear", "factor": 2.0}
    done("train", "llama-tiny", "--steps", 2, *data, "--out", d / "llama", "--set", f"rope_scaling={json.dumps(scaling)}")
    expect(json.loads((d / "llama/config.json").read_text())["values"]["rope_scaling"] == scaling, "config.json")
    done("convert", d / "llama", d / "folder")
    expect(json.loads((d / "folder/config.json").read_text())["rope_scaling"] == scaling, "folder/config.json")
    shown = done("train", d / "folder", "--print-config")
    expect('{"rope_type":"linear","factor":2.0}' in shown, shown)
    done("train", "--resume", d / "llama", "--steps", 3, *data)
    refused("rope_scaling is", "train", d / "folder", "--set", "rope_scaling=", *data, "--out", d / "none")

for line in wrong:
    print(line)
print("adapters, names of models and flags are taken or refused as they say" if not wrong else f"{len(wrong)} wrong")
sys.exit(1 if wrong else 0)
