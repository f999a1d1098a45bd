"""A mystery is sealed until `reveal`: nothing that a run prints or writes names it, the same seed
draws the same fault, and what was planted changes no verdict by being written down."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
SOURCE = pathlib.Path(os.environ["FAULTLINE_SOURCE_DIR"])
wrong = []


def run(*arguments, code=0):
    done = subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != code:
        wrong.append(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr[-300:]}")
    return done.stdout + done.stderr


def refused(expected, *arguments):
    done = subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = done.stderr if done.returncode == 2 else f"exit {done.returncode}"
    if expected not in text or len(text.splitlines()) != 1:
        wrong.append(f"{' '.join(map(str, arguments))}: {text[-300:]}")


def revealed(path):
    return json.loads(run("reveal", path, "--json", "-"))


def marks(path):
    return json.loads((path / "config.json").read_text())["sources"]


def without_time(path):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "ms"} for line in lines]


rows = json.loads(run("lab", "--list", "--json", "-"))
names = {row["id"] for row in rows} | {row["id"] + ":" + row["variant"] for row in rows if row["variant"]}
trainable = {(row["id"], row["variant"]) for row in rows if row["train"]}


def check_silent(what, text):
    told = [name for name in names if name in text]
    if told:
        wrong.append(f"{what} names {told}")


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_bytes(subprocess.run(["bible", "-f", "gen1:1-ex9:35"], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, check=True).stdout)

    def train(out, *arguments):
        return run("train", "tiny", "--data", text, "--out", folder / out, *arguments)

    drawn = set()
    for seed in range(8):
        out = folder / f"mystery{seed}"
        said = train(out.name, "--steps", 3, "--watch", "off", "--fault", f"mystery:{seed}")
        check_silent(f"the run of seed {seed}", said)
        for path in filter(pathlib.Path.is_file, out.rglob("*")):
            check_silent(f"{path.name} of seed {seed}", path.read_bytes().decode("latin-1"))
        (entry,) = json.loads((out / "faults.json").read_text())
        bits = bytes.fromhex(entry["sealed"])
        check_silent(f"the seal of seed {seed} as text", bits.decode("latin-1"))
        if b"fault" in bits or set(entry) != {"sealed", "check"}:
            wrong.append(f"the seal of seed {seed} is {entry}")
        # Neither the marks of the configuration nor the length of the seal tell one from another.
        if marks(out) != marks(folder / "mystery0") or len(bits) != 256:
            wrong.append(f"seed {seed} is marked {marks(out)}, sealed in {len(bits)} bytes")
        (fault,) = revealed(out)["planted"]
        drawn.add((fault["fault"], fault["variant"]))
    if not drawn <= trainable or len(drawn) < 3:
        wrong.append(f"8 seeds draw {drawn}")

    # The seed decides, and what it draws is the fault that its name plants.
    train("again", "--steps", 3, "--watch", "off", "--fault", "mystery:0")
    first = revealed(folder / "mystery0")
    if revealed(folder / "again") != first:
        wrong.append("one seed draws two faults")
    (fault,) = first["planted"]
    name = fault["fault"] + (":" + fault["variant"] if fault["variant"] else "")
    train("named", "--steps", 3, "--watch", "off", "--fault", name)
    if without_time(folder / "named") != without_time(folder / "mystery0"):
        wrong.append(f"mystery:0 is {name}, and trains otherwise")
    if "faultline explain " + fault["fault"] not in run("reveal", folder / "named"):
        wrong.append("reveal does not say where to read on")

    # An onset; a run that ended before it. Every seed can begin later.
    for seed in range(6):
        train(f"late{seed}", "--steps", 4, "--fault", f"mystery:{seed}@step=3")
        if revealed(folder / f"late{seed}")["planted"][0]["step"] != 3:
            wrong.append(f"mystery:{seed}@step=3 does not begin at 3")
        if "from step 3 on\n" not in run("reveal", folder / f"late{seed}"):
            wrong.append(f"reveal of mystery:{seed}@step=3 does not tell the step")

    # A resume goes on with it where it is asked again, and stays one entry.
    run("train", "--resume", folder / "mystery0", "--steps", 5, "--fault", "mystery:0")
    train("longer", "--steps", 5, "--watch", "off", "--fault", "mystery:0")
    if without_time(folder / "mystery0")[:3] != without_time(folder / "longer")[:3]:
        wrong.append("a resumed mystery is another run")
    if revealed(folder / "mystery0")["planted"] != first["planted"]:
        wrong.append("a resumed mystery is planted twice")
    if "goes on without" not in run("train", "--resume", folder / "again", "--steps", 4):
        wrong.append("a resume without the mystery does not say so")
    (fault,) = revealed(folder / "again")["planted"]
    if fault.get("last") != 3 or "from step 1 to 3\n" not in run("reveal", folder / "again"):
        wrong.append(f"a mystery that a resume left out is told as {fault}")

    # A text that is not cut by references, and values of one's own: some seeds can be had, the
    # others are refused, all in the same words.
    plain = folder / "plain.txt"
    plain.write_text("some words without a reference\n" * 2000)
    for number, own in enumerate((["--data", plain], ["--data", text, "--set", "documents=none", "--set",
                                                      "weight_decay=0.2", "--set", "init_std=0.03"])):
        had, words = 0, set()
        for seed in range(16):
            done = subprocess.run([BINARY, "train", "tiny", *own, "--steps", "1", "--watch", "off", "--out",
                                   folder / f"own{number}-{seed}", "--fault", f"mystery:{seed}"], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            check_silent(f"seed {seed} with {own}", done.stdout + done.stderr)
            had += done.returncode == 0
            if done.returncode:
                words.add(done.stderr.replace(f"mystery:{seed}:", "mystery:"))
        if had == 0 or len(words) != 1 or "take another seed" not in min(words):
            wrong.append(f"with {own} {had} of 16 seeds are had, the others refused with {words}")

    # A fault is named where it is not a mystery.
    if "needs documents=verse\n" not in train("verse", "--steps", 1, "--fault", "labels.eos-masked"):
        wrong.append("what labels.eos-masked needs is not told")
    refused("labels.eos-masked: it needs the default corpus", "train", "tiny", "--data", plain, "--out",
            folder / "refused", "--steps", 1, "--fault", "labels.eos-masked")

    # Right and wrong verdicts, and none.
    train("right", "--steps", 60, "--watch", "full", "--fault", "labels.no-shift")
    answer = revealed(folder / "right")
    if (answer["verdict"], answer["cause"], answer["right"]) != ("fault", "labels.no-shift", True):
        wrong.append(f"reveal of a named fault: {answer}")
    train("missed", "--steps", 3, "--watch", "full", "--fault", "adamw.step-counter:bf16")
    answer = revealed(folder / "missed")
    if (answer["verdict"], answer["right"]) != ("healthy", False) or "which is wrong" not in run(
            "reveal", folder / "missed"):
        wrong.append(f"reveal of a fault that was missed: {answer}")
    train("healthy", "--steps", 20, "--watch", "full")
    answer = revealed(folder / "healthy")
    if answer != {"planted": [], "verdict": "healthy", "cause": "", "right": True}:
        wrong.append(f"reveal of a healthy run: {answer}")
    verdict = json.loads((folder / "right" / "verdict.json").read_text())
    verdict["causes"][0]["id"] = "softmax.overflow"
    (folder / "mystery1" / "verdict.json").write_text(json.dumps({**verdict, "causes": []}))
    if revealed(folder / "mystery1")["right"] is not False or "wrong" not in run("reveal", folder / "mystery1"):
        wrong.append("reveal takes a verdict without a cause for right")
    if revealed(folder / "mystery2")["right"] is not None:
        wrong.append("reveal judges a run without a verdict")

    # The verdict is the same when nobody wrote down what was planted.
    unwritten = folder / "unwritten"
    process = subprocess.Popen([BINARY, "train", "tiny", "--data", text, "--out", unwritten, "--steps", "60",
                                "--watch", "full", "--fault", "labels.no-shift"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (unwritten / "faults.json").exists():
        pass
    (unwritten / "faults.json").unlink()
    process.wait()
    if (unwritten / "verdict.json").read_text() != (folder / "right" / "verdict.json").read_text():
        wrong.append("the verdict depends on faults.json")
    for path in (SOURCE / "diagnose").rglob("*"):
        if path.is_file() and "faults.json" in path.read_text():
            wrong.append(f"{path} knows faults.json")

    # A seal that was changed is broken; bad seeds and directories are refused.
    sealed = json.loads((folder / "mystery3" / "faults.json").read_text())
    sealed[0]["sealed"] = ("0" if sealed[0]["sealed"][0] != "0" else "1") + sealed[0]["sealed"][1:]
    (folder / "mystery3" / "faults.json").write_text(json.dumps(sealed))
    refused("broken", "reveal", folder / "mystery3")
    (folder / "mystery3" / "faults.json").write_text('[{"sealed": "zz", "check": "12"}]')
    refused("broken", "reveal", folder / "mystery3")
    refused("not a run directory", "reveal", folder)
    tiny = ["train", "tiny", "--steps", 3, "--out", folder / "refused", "--data", text, "--fault"]
    for seed in ("", "x", "-1", "1.5", "18446744073709551616", "seven@step=2"):
        refused("whole number", *tiny, "mystery:" + seed)
    refused("needs a seed", *tiny, "mystery")
    refused("alone", *tiny, "mystery:1", "--fault", "labels.no-shift")
    refused("after the last step", *tiny, "mystery:1@step=9")
    if (folder / "refused").exists():
        wrong.append("a refused run left its directory")

if wrong:
    sys.exit("\n".join(wrong))
print("sealed, drawn by seed, revealed and judged")
