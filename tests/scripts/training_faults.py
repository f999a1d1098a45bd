"""Every fault that has a training form is named first in a real run, by the very command that
`explain` shows; and a run with the same settings and without the fault is healthy."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
# Real text, a tenth of the default corpus: what is evaluated at the end of a run is shorter too.
TEXT = ["bible", "-f", "gen1:1-lev27:34"]
TRAINABLE = 49  # variants with a training form; a new one raises it
wrong = []


def run(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def commands():
    """{name: (id, arguments)} of every variant that `lab --list` marks for training."""
    found = {}
    for row in json.loads(run("lab", "--list", "--json", "-").stdout):
        if not row["train"]:
            continue
        name = row["id"] + (":" + row["variant"] if row["variant"] else "")
        shown = re.search(rf"faultline (train .*--fault {re.escape(name)} .*)", run("explain", row["id"]).stdout)
        if shown is None:
            wrong.append(f"{name}: explain shows no command for its training form")
            continue
        found[name] = (row["id"], shlex.split(shown.group(1)))
    return found


def train(arguments, out, text):
    arguments = [str(out) if a == "DIR" else a for a in arguments] + ["--data", text]
    done = run(*arguments)
    path = out / "verdict.json"
    if done.returncode != 0 or not path.exists():
        return None, f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
    return json.loads(path.read_text()), ""


def settings(out):
    """What the fault set in the configuration, as arguments."""
    config = json.loads((out / "config.json").read_text())
    keys = [k for k, source in config["sources"].items() if source == "fault"]
    as_text = lambda value: str(value).lower() if isinstance(value, bool) else str(value)
    return [a for k in sorted(keys) for a in ("--set", f"{k}={as_text(config['values'][k])}")]


def faulty(name, id_, arguments, folder, text):
    out = folder / name.replace(":", "_")
    verdict, error = train(arguments, out, text)
    if verdict is None:
        return None, f"{name}: {error}"
    causes = [cause["id"] for cause in verdict["causes"]]
    if verdict["verdict"] != "fault" or causes[:1] != [id_]:
        return None, f"{name} is called {verdict['verdict']} {causes}"
    fault = arguments.index("--fault")
    return tuple(arguments[:fault] + arguments[fault + 2:] + settings(out)), ""


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_bytes(subprocess.run(TEXT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout)
    planted = commands()
    jobs = [pool.submit(faulty, name, id_, arguments, folder, text)
            for name, (id_, arguments) in planted.items()]
    healthy = set()
    for arguments, error in (job.result() for job in jobs):
        healthy.add(arguments)
        wrong += [error] if error else []
    healthy = sorted(filter(None, healthy))
    jobs = [pool.submit(train, arguments, folder / f"healthy{i}", text) for i, arguments in enumerate(healthy)]
    for arguments, (verdict, error) in zip(healthy, (job.result() for job in jobs)):
        if verdict is None or verdict["verdict"] != "healthy":
            wrong.append(f"healthy {' '.join(arguments)}: {error or json.dumps(verdict)[:400]}")

    if len(planted) != TRAINABLE:
        wrong.append(f"{len(planted)} variants have a training form, not {TRAINABLE}")
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(planted)} faults named in real runs, {len(healthy)} healthy runs with their settings silent")
