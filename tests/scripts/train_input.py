"""train, generate and bench refuse what they cannot use: exit 2, one line that says what to do, and
nothing left behind. And --resume, --fault and --print-config do what they promise."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
wrong = []


def run(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused(expected, *arguments):
    done = run(*arguments)
    line = done.stderr.strip()
    if done.returncode != 2 or "\n" in line or expected not in line:
        wrong.append(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {line[-300:]}")
    for internal in ("std::", "what()", "CLI::", ".cpp:", "terminate"):
        if internal in line:
            wrong.append(f"{internal} in: {line}")


def accepted(*arguments):
    done = run(*arguments)
    if done.returncode != 0:
        wrong.append(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr[-300:]}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 100)
    (folder / "binary").write_bytes(b"ab\0cd" * 100)
    (folder / "used").mkdir()
    (folder / "used" / "notes").write_text("mine")
    out = folder / "out"
    tiny = ["train", "tiny", "--steps", 3, "--out", out, "--data", text]

    refused("did you mean 'train'?", "trian")
    refused("later version", "diagnose", out)
    refused("did you mean '--steps'?", *tiny, "--stpes", 3)
    refused("later version", *tiny, "--ranks", 2)
    refused("one argument too many", *tiny, "more")
    refused("later version", "train", "llama-tiny", "--out", out)
    refused("--out", "train", "tiny", "--data", text)
    refused("--resume", "train", "tiny", "--out", folder / "used", "--data", text)
    refused("num_heads", *tiny, "--set", "num_head=2")
    refused("key=value", *tiny, "--set", "lr")
    refused("--threads", *tiny, "--threads", -1)
    refused("--checkpoint-every", *tiny, "--checkpoint-every", -1)
    refused("watch", *tiny, "--watch", "closely")
    refused("binary", "train", "tiny", "--steps", 3, "--out", out, "--data", folder / "binary")
    refused("one rank", *tiny, "--fault", "labels.no-shift@rank=1")
    refused("step=N", *tiny, "--fault", "labels.no-shift@soon")
    refused("from 1", *tiny, "--fault", "labels.no-shift@step=0")
    refused("after the last step", *tiny, "--fault", "labels.no-shift@step=9")
    refused("before the first step", *tiny, "--fault", "adamw.step-counter:bf16@step=2")
    refused("named twice", *tiny, "--fault", "labels.no-shift", "--fault", "labels.no-shift")
    if out.exists():
        wrong.append("a refused run left its directory")

    accepted(*tiny)
    refused("lr=", "train", "--resume", out, "--lr", "0.5", "--steps", 5)
    refused("num_layers", "train", "char", "--resume", out, "--steps", 5)
    accepted("train", "--resume", out, "--steps", 5, "--out", folder / "branch")
    accepted("train", "tiny", "--resume", out, "--steps", 5)
    rows = [(folder / d / "metrics.jsonl").read_text().splitlines() for d in ("out", "branch")]
    bare = [[{k: v for k, v in json.loads(line).items() if k != "ms"} for line in r] for r in rows]
    if bare[0] != bare[1] or len(bare[0]) < 5:
        wrong.append("a run resumed in place and elsewhere has other metrics")
    if "step_5" not in os.listdir(folder / "branch" / "checkpoints"):
        wrong.append("the branch has no last checkpoint")

    refused("prompt", "generate", out, "--prompt", "")
    refused("temperature", "generate", out, "--prompt", "x", "--temperature", -1)
    refused("top_k", "generate", out, "--prompt", "x", "--top-k", -1)
    refused("--tokens", "generate", out, "--prompt", "x", "--tokens", -1)
    answer = json.loads(accepted("generate", out, "--prompt", "y" * 40, "--tokens", 5, "--json", "-"))
    if answer["context"] != {"requested": 40, "used": 32, "dropped": 8}:
        wrong.append(f"context {answer['context']}")
    again = json.loads(accepted("generate", out, "--prompt", "y" * 40, "--tokens", 5, "--json", "-"))
    if answer["tokens"] != again["tokens"]:
        wrong.append("one seed gives two texts")

    refused("later version", "bench", "tiny", "--dtype", "bf16")
    refused("--steps", "bench", "tiny", "--steps", 0)

    # A damaged checkpoint is named, and not trained on.
    state = next((out / "checkpoints" / "step_5").glob("*.safetensors"))
    damaged = bytearray(state.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    state.write_bytes(damaged)
    refused("step_5", "train", "--resume", out, "--steps", 6)
    refused("step_5", "generate", out, "--prompt", "x")

    # What was planted is in faults.json and nowhere else.
    faulty = folder / "faulty"
    accepted("train", "tiny", "--steps", 3, "--data", text, "--out", faulty, "--watch", "off",
             "--fault", "optim.missing-zero-grad@step=2")
    planted = json.loads((faulty / "faults.json").read_text())
    if planted != [{"fault": "optim.missing-zero-grad", "variant": "", "step": 2, "rank": 0}]:
        wrong.append(f"faults.json holds {planted}")
    for path in faulty.rglob("*"):
        if path.is_file() and path.name != "faults.json" and b"missing-zero-grad" in path.read_bytes():
            wrong.append(f"{path.name} names the fault")
    healthy = [json.loads(line) for line in rows[0]]
    found = [json.loads(line) for line in (faulty / "metrics.jsonl").read_text().splitlines()]
    if found[0]["loss"] != healthy[0]["loss"] or found[1]["grad_norm"] == healthy[1]["grad_norm"]:
        wrong.append("a fault from step 2 on does not begin at step 2")
    stopped = run("train", "tiny", "--steps", 50, "--data", text, "--out", folder / "stopped",
                  "--watch", "full", "--fault", "optim.missing-zero-grad", "--stop-on-fault")
    if stopped.returncode != 1 or not (folder / "stopped" / "verdict.json").exists():
        wrong.append(f"--stop-on-fault: exit {stopped.returncode}: {stopped.stderr[-200:]}")

    shown = accepted("train", "tiny", "--lr", "0.25", "--print-config")
    if not any(line.split() == ["lr", "0.25", "--lr"] for line in shown.splitlines()):
        wrong.append("--print-config does not show lr and its source")

if wrong:
    sys.exit("\n".join(wrong))
print("refused, resumed, planted and shown as promised")
