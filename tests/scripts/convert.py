"""convert, generate and train with model folders, from the command line: a run becomes a folder and a
run again, all three continue a text alike, and nothing is left where a command is refused."""
import json
import os
import pathlib
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
