"""Ctrl-C ends a training run after a whole step or within an evaluation, saves it and exits 0;
resumed, the run has the losses and evaluations of one that was never stopped."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
STEPS = 400
FOR_EVER = 100_000_000


def column(run, key):
    """The values of that key in the run's metrics; a line may be half-written while it runs."""
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return [row[key] for row in map(json.loads, lines) if key in row]


def train(*arguments):
    subprocess.run([BINARY, "train", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def start(run, text, steps, **environment):
    return subprocess.Popen(
        [BINARY, "train", "tiny", "--out", str(run), "--data", str(text), "--steps", str(steps)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def wait_for_losses(process, run, count):
    """Waits until the run has written that many losses."""
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(column(run, "loss")) >= count:
            return


def stop(process, run, signal_number):
    """Stops the run; returns how many steps it has done."""
    process.send_signal(signal_number)
    output, _ = process.communicate(timeout=120)
    if process.returncode != 0 or "--resume" not in output:
        sys.exit(f"exit {process.returncode}: {output[-300:]}")
    done = len(column(run, "loss"))
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    if checkpoints != sorted(["step_0", f"step_{done}"]):
        sys.exit(f"{done} steps, but checkpoints {checkpoints}")
    return done


def signals(status, name):
    """The set of signals in a mask of /proc/PID/status."""
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(name))
    return {s for s in signal.Signals if mask >> (s - 1) & 1}


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 200)
    train("tiny", "--out", folder / "straight", "--data", text, "--steps", STEPS)

    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        run = folder / f"stopped{int(signal_number)}"
        process = start(run, text, FOR_EVER)
        wait_for_losses(process, run, 5)
        done = stop(process, run, signal_number)
        if done < STEPS:
            train("--resume", run, "--steps", STEPS)
        if column(run, "loss")[:STEPS] != column(folder / "straight", "loss"):
            sys.exit("interrupted and resumed gives other losses than never stopping")

    # The evaluation at the end is the long part of this run.
    long_text = folder / "long.txt"
    long_text.write_text("In the beginning God created the heaven and the earth. " * 100_000)
    run = folder / "evaluating"
    process = start(run, long_text, 2)
    wait_for_losses(process, run, 2)
    stop(process, run, signal.SIGINT)
    if column(run, "eval_loss"):
        sys.exit("Ctrl-C had no effect on the evaluation at the end")
    train("--resume", run, "--steps", 2)
    if len(column(run, "eval_loss")) != 1 or len(column(run, "loss")) != 2:
        sys.exit("the resumed run has not made up for its evaluation")

    # A handler on a thread that computes damages memory (cli/interrupt.h), so there is none.
    run = folder / "threads"
    process = start(run, text, FOR_EVER, OMP_NUM_THREADS="2")
    wait_for_losses(process, run, 5)
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        status = (task / "status").read_text()
        stopping = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if stopping & signals(status, "SigCgt:") or not stopping <= signals(status, "SigBlk:"):
            sys.exit(f"a signal may interrupt a computing thread:\n{status}")
    stop(process, run, signal.SIGINT)
print(f"stopped after {done} steps, resumed to {STEPS}: the same losses")
