"""A mystery is sealed until `reveal`: nothing that a run prints or writes names it, the same seed
draws the same fault, and what was planted changes no verdict by being written down."""
import json
import os
import pathlib
import signal
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


def resumed(run_, out, *faults):
    """One more step of a run, elsewhere: what is printed, and whether it was refused in one line."""
    done = subprocess.run([BINARY, "train", "--resume", run_, "--out", out, "--steps", "4", "--watch", "off",
                           *(a for fault in faults for a in ("--fault", fault))], stdin=subprocess.DEVNULL,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told = done.stdout + done.stderr
    if done.returncode not in (0, 2) or done.returncode and len(told.splitlines()) != 1:
        wrong.append(f"--resume {run_.name} {faults}: exit {done.returncode}: {told[-300:]}")
    return told, done.returncode == 2


def check_resumes(folder, train):
    """What a resume takes and refuses says nothing of a mystery; a fault in the state stays there."""
    steps = ("--steps", 3, "--watch", "off")
    train("plain", *steps)
    counter, no_shift = "adamw.step-counter:bf16", "labels.no-shift"
    train("counter", *steps, "--fault", counter)
    train("no_shift", *steps, "--fault", no_shift)

    # A mystery begins in some runs, and is refused in the same words whatever stands in its way.
    for begun in ("plain", "no_shift"):
        went_on, words = 0, set()
        for seed in range(16):
            told, was_refused = resumed(folder / begun, folder / f"{begun}{seed}", f"mystery:{seed}")
            check_silent(f"mystery:{seed} in a resume", told)
            went_on += not was_refused
            if was_refused:
                words.add(told.replace(f"mystery:{seed}:", "mystery:"))
        if went_on == 0 or len(words) != 1 or "take another seed" not in min(words):
            wrong.append(f"{went_on} of 16 mysteries begin in {begun}, the others are refused with {words}")

    # One that is there goes on alone, also where its fault is one that could be left out or is named.
    words = set()
    for seed in range(8):
        (fault,) = revealed(folder / f"mystery{seed}")["planted"]
        name = fault["fault"] + (":" + fault["variant"] if fault["variant"] else "")
        others = [s for s in range(8) if revealed(folder / f"mystery{s}")["planted"] != [fault]]
        for faults in ([], [name], [f"mystery:{others[0]}"], [f"mystery:{others[-1]}"]):
            told, was_refused = resumed(folder / f"mystery{seed}", folder / "refused", *faults)
            words.add(told.replace(f"mystery{seed}", "mystery") if was_refused else f"goes on: {told}")
        resumed(folder / f"mystery{seed}", folder / f"on{seed}", f"mystery:{seed}")
        if revealed(folder / f"on{seed}")["planted"] != [fault]:
            wrong.append(f"a resumed mystery:{seed} is another one")
    if len(words) != 1 or "repeat its --fault mystery:SEED" not in min(words):
        wrong.append(f"a mystery is left out with {words}")

    # A named fault in the state neither ends nor begins with a resume; others do.
    told, was_refused = resumed(folder / "counter", folder / "refused")
    if not was_refused or f"can be continued only with it; repeat --fault {counter}" not in told:
        wrong.append(f"a step counter is left out: {told}")
    told, was_refused = resumed(folder / "plain", folder / "refused", counter)
    if not was_refused or "step counter, which is made before the first step; begin a new run" not in told:
        wrong.append(f"a step counter begins in a resume: {told}")
    told, was_refused = resumed(folder / "plain", folder / "refused", "loss.log-zero:all-ignored")
    if not was_refused or "which plain did not begin with" not in told.replace(f"{folder}/", ""):
        wrong.append(f"what a fault needs is changed by a resume: {told}")
    if (folder / "refused").exists():
        wrong.append("a refused resume left its directory")
    told, was_refused = resumed(folder / "no_shift", folder / "without")
    (fault,) = revealed(folder / "without")["planted"]
    if was_refused or "goes on without" not in told or fault.get("last") != 3:
        wrong.append(f"a fault that a resume left out is told as {fault}: {told}")
    if "from step 1 to 3\n" not in run("reveal", folder / "without"):
        wrong.append("reveal does not tell how long a fault was there")


def check_interrupted(folder, text):
    """The command that goes on with an interrupted run goes on with its mystery."""
    process = subprocess.Popen([BINARY, "train", "tiny", "--data", text, "--out", folder / "cut", "--steps", "100000",
                                "--fault", "mystery:1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and not (folder / "cut" / "metrics.jsonl").exists():
        pass
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate()
    if f"--resume {folder / 'cut'} --fault mystery:1\n" not in told:
        wrong.append(f"an interrupted mystery is told to go on as {told[-300:]}")


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
    check_resumes(folder, train)
    check_interrupted(folder, text)

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
