"""convert, generate and train with model folders, from the command line: a run becomes a folder and a
run again, all three continue a text alike, and nothing is left where a command is refused."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
GOLDEN = pathlib.Path(os.environ.get("FAULTLINE_SOURCE_DIR", ".")) / "tests/golden"
wrong = []


def run(*arguments):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def expect(condition, text):
    if not condition:
        wrong.append(text)


def answer(*arguments):
    code, out, err = run(*arguments, "--json", "-")
    expect(code == 0, f"{arguments}: exit {code}: {err}")
    return json.loads(out) if code == 0 else {}


def write_ids(path, ids):
    """A safetensors file with `ids` [1, T]."""
    header = json.dumps({"ids": {"dtype": "I32", "shape": [1, len(ids)],
                                 "data_offsets": [0, 4 * len(ids)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + struct.pack(f"<{len(ids)}i", *ids))
    return path


def tokens(directory):
    return answer("generate", directory, "--prompt", "In", "--tokens", 12).get("tokens")


def refused(said, *arguments):
    code, _, err = run(*arguments)
    expect(code == 2 and said in err and err.count("\n") == 1, f"{arguments}: exit {code}: {err}")


with tempfile.TemporaryDirectory() as scratch:
    d = pathlib.Path(scratch)
    text = d / "text.txt"
    text.write_text("In the beginning was the word, and the word was light. " * 200)
    data = ["--data", text]
    expect(run("train", "tiny", "--steps", 3, *data, "--out", d / "run")[0] == 0, "train tiny")
    made = answer("convert", d / "run", d / "folder")
    expect(made.get("to") == "hf" and made.get("architecture") == "GPT2LMHeadModel", f"{made}")
    expect(answer("convert", d / "folder", d / "again").get("to") == "run", "folder to run")
    answer("convert", d / "folder", d / "shards", "--to", "hf", "--shard-bytes", 20000)
    expect((d / "shards/model.safetensors.index.json").exists(), "no index beside the shards")
    expected = tokens(d / "run")
    for name in ("folder", "again", "shards"):
        expect(tokens(d / name) == expected, f"{name} continues the text otherwise than the run")

    expect(run("train", d / "folder", "--steps", 2, *data, "--out", d / "tuned")[0] == 0, "tune")
    expect(run("train", "--resume", d / "tuned", "--steps", 4)[0] == 0, "resume what was tuned")
    config = json.loads((d / "tuned/config.json").read_text())
    expect(config["sources"]["hidden_size"] == str(d / "folder"), "the source of hidden_size")
    expect(answer("convert", d / "tuned", d / "tuned_folder").get("to") == "hf", "tuned to folder")

    # A folder that does not say so is not sampled from, as in transformers, until a flag asks.
    plain = json.loads((d / "folder/generation_config.json").read_text())
    expect(plain.get("do_sample") is True and plain.get("top_k") == 0, f"of a run that samples: {plain}")
    shutil.copytree(d / "folder", d / "likeliest")
    for key in ("do_sample", "top_k"):
        plain.pop(key)
    (d / "likeliest/generation_config.json").write_text(json.dumps(plain))
    expect(answer("generate", d / "folder", "--prompt", "In", "--tokens", 12, "--temperature", 0)
           .get("tokens") == tokens(d / "likeliest"), "a folder without do_sample was sampled from")

    ids = write_ids(d / "two.safetensors", [73, 110])
    made = answer("logits", d / "folder", "--ids", ids, "--out", d / "logits.safetensors", "--threads", 1)
    expect(made.get("shape") == [1, 2, 256] and made.get("loss", 0) > 0, f"logits of two ids: {made}")
    one = write_ids(d / "one.safetensors", [73])
    made = answer("logits", d / "run", "--ids", one, "--out", d / "logits.safetensors")
    expect(made.get("shape") == [1, 1, 256] and made.get("loss", 0) is None, f"of one id: {made}")
    expect(b'"loss"' not in (d / "logits.safetensors").read_bytes(), "a loss of one id")
    refused("is the file of --ids", "logits", d / "run", "--ids", one, "--out", d / "." / "one.safetensors")

    for name in ("run", "folder"):
        made = answer("tokenize", d / name, text)
        expect(made.get("lossless") is True and made.get("tokens", [])[:2] == [73, 110],
               f"tokenize with the tokenizer of {name}")

    tuned = ("train", d / "folder", "--lora", "r=2,alpha=4", "--steps", 2, *data, "--out", d / "adapted")
    expect(run(*tuned)[0] == 0, "train an adapter")
    written = json.loads((d / "adapted/adapter/adapter_config.json").read_text())
    expect(written["base_model_name_or_path"] == str(d / "folder"), "the adapter's base")
    code, out, err = run("merge", d / "adapted", "--out", d / "merged")
    layers = [line.split()[0] for line in out.splitlines() if "% of the update survived" in line]
    expect(code == 0 and len(layers) == 8 and layers[0].startswith("transformer.h.0."), f"{out}{err}")
    kept = json.loads((d / "merged/generation_config.json").read_text())
    expect(kept == json.loads((d / "folder/generation_config.json").read_text()), f"merge: {kept}")
    refused("other weights", "generate", d / "tuned_folder", "--adapter", d / "adapted/adapter",
            "--prompt", "In")

    refused("is a run already", "convert", d / "run", d / "x", "--to", "run")
    refused("convert: DST", "convert", d / "run", d / "folder")
    refused("convert: DST", "convert", d / "nothing", d / "folder")  # said before anything is read
    refused("convert: DST is empty", "convert", d / "run", "")
    refused("merge: --out", "merge", d / "run", "--out", d / "run")
    refused("neither a run nor", "generate", text, "--prompt", "In")
    refused("--to is hf or run", "convert", d / "run", d / "x", "--to", "zip")
    refused("must be positive", "convert", d / "run", d / "x", "--shard-bytes", 0)
    refused("neither a run nor", "convert", d / "nothing", d / "x")
    refused("without an optimizer", "train", "--resume", d / "again")
    refused("--resume", "train", d / "run", "--out", d / "x")
    refused("num_layers is 2", "train", d / "folder", "--set", "num_layers=3", "--out", d / "x")
    refused("no tokenizer", "generate", GOLDEN / "hf_gpt2", "--prompt", "In")
    expect(not (d / "x").exists() and not list(d.glob(".*")), "a refused command left something")

for line in wrong:
    print(line)
sys.exit(1 if wrong else 0)
