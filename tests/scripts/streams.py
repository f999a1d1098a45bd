"""Where the output goes: a closed or full standard output, a reader that goes away, a narrow
terminal, --json - beside nothing else."""
import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios

BINARY = os.environ["FAULTLINE_BINARY"]
COLUMNS = 30
wrong = []


def on_terminal(*arguments):
    """What the command writes to a terminal of COLUMNS columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdin=slave, stdout=slave)
    os.close(slave)
    written = b""
    try:
        while part := os.read(master, 4096):
            written += part
    except OSError:  # the other end is closed
        pass
    process.wait()
    os.close(master)
    return written.decode()


def steps(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "loss" in row]


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 100)
    train = [BINARY, "train", "tiny", "--steps", "30", "--data", str(text), "--out"]

    # A run goes on whatever becomes of its output, and no output ends up in its files.
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *train, folder / "closed"])
    if closed.returncode != 0 or steps(folder / "closed") != list(range(1, 31)):
        wrong.append(f"train with a closed standard output: exit {closed.returncode}")
    reader = subprocess.Popen([*train, folder / "unread"], stdout=subprocess.PIPE)
    reader.stdout.close()
    if reader.wait() != 0 or steps(folder / "unread") != list(range(1, 31)):
        wrong.append(f"train whose reader went away: exit {reader.returncode}")

    # An answer that cannot be written is an error.
    generate = ["generate", folder / "closed", "--prompt", "In", "--tokens", "4"]
    for arguments in (["lab", "--list"], ["explain", "adamw.step-counter"], ["train", "tiny", "--print-config"], generate):
        for place in (">/dev/full", ">&-"):
            done = subprocess.run(["sh", "-c", f'"$@" {place}', "sh", BINARY, *arguments], stderr=subprocess.PIPE, text=True)
            if done.returncode != 2 or len(done.stderr.splitlines()) != 1:
                wrong.append(f"{arguments} {place}: exit {done.returncode} {done.stderr}")

    # A pipe is written into and not replaced, as a device is not.
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    subprocess.run([BINARY, *generate, "--json", pipe], check=True, stdout=subprocess.DEVNULL)
    if not pipe.is_fifo() or json.loads(os.read(reader, 65536))["prompt"] != "In":
        wrong.append("--json to a pipe does not write into it")
    os.close(reader)
    done = subprocess.run([BINARY, *generate, "--json", folder / "none/x"], capture_output=True, text=True)
    if done.returncode != 2 or (folder / "none").exists() or "no directory" not in done.stderr:
        wrong.append(f"--json below a directory that is not there: exit {done.returncode} {done.stderr}")

    # The line that is written over must not be broken into several.
    shown = on_terminal(*train[1:], folder / "narrow")
    for line in shown.replace("\r\n", "\n").split("\n"):
        for part in line.split("\r")[1:]:
            if len(part) >= COLUMNS:
                wrong.append(f"{len(part)} columns of {COLUMNS}: {part!r}")
    if "\r30/30 [" not in shown or "validation loss" not in shown:
        wrong.append(f"no progress on a terminal: {shown!r}")

    for arguments in (["lab", "adamw.step-counter"], ["lab", "--list"], ["explain", "adamw.step-counter"],
                      ["generate", folder / "closed", "--prompt", "In", "--tokens", "4"],
                      ["bench", "tiny", "--steps", "1"]):
        done = subprocess.run([BINARY, *arguments, "--json", "-"], stdout=subprocess.PIPE, text=True)
        json.loads(done.stdout)
if wrong:
    sys.exit("\n".join(wrong))
print("output goes where it should")
