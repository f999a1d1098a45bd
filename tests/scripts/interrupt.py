"""Ctrl-C ends a training run after a whole step, saves it and exits 0; resumed, the run has the
losses of one that was never stopped."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
STEPS = 400


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def train(*arguments):
    subprocess.run([BINARY, "train", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 200)
    common = ["--data", text, "--steps", STEPS]
    train("tiny", "--out", folder / "straight", *common)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        run = folder / f"stopped{int(signal_number)}"
        # Steps go on for ever but for the signal, which comes when the first lines are there.
        process = subprocess.Popen(
            [BINARY, "train", "tiny", "--out", str(run), "--data", str(text), "--steps", "100000000"],
            stdout=subprocess.PIPE, text=True)
        metrics = run / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 500):
            pass
        process.send_signal(signal_number)
        output, _ = process.communicate(timeout=120)
        if process.returncode != 0 or "--resume" not in output:
            sys.exit(f"exit {process.returncode}: {output[-300:]}")
        done = len(losses(run))
        checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
        if checkpoints != sorted(["step_0", f"step_{done}"]):
            sys.exit(f"{done} steps, but checkpoints {checkpoints}")
        if done < STEPS:
            train("--resume", run, "--steps", STEPS)
        expected = losses(folder / "straight")
        if losses(run)[:STEPS] != expected:
            sys.exit("interrupted and resumed gives other losses than never stopping")
print(f"stopped after {done} steps, resumed to {STEPS}: the same losses")
