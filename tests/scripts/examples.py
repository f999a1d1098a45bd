"""Each program of examples/ is healthy when clean and names its fault when it is planted; takes the
faults that are in its code, from the step that is asked, and refuses the others; and examples/README.md tells its true lines and output. gpt_one_file trains as
the framework's own parts do."""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BINARY = pathlib.Path(os.environ["FAULTLINE_BINARY"])
EXAMPLES = pathlib.Path(os.environ["FAULTLINE_SOURCE_DIR"]) / "examples"
README = (EXAMPLES / "README.md").read_text()
# The faults that one step of a program comes to. That of a kernel is taken by all.
STEPPED = {"adamw.step-counter:bf16", "adamw.step-counter:fp16", "optim.missing-zero-grad", "attn.scale-twice"}
OWN_STEP = STEPPED | {"adamw.step-counter:step-zero"}
TAKES = {"mlp": OWN_STEP, "custom_op": OWN_STEP, "own_fault": STEPPED, "gpt_one_file": {"labels.no-shift", "attn.scale-twice"},
         "own_model": OWN_STEP | {"labels.no-shift", "labels.double-shift"}}
# What programs with a configuration do not take: char_gpt merges no adapter; and where only an
# adapter is trained, a loss without a path to it has no gradient at all, which backward refuses.
LEAVES = {"char_gpt": {"lora.fan-in-out", "lora.merge-bf16", "lora.merge-twice"},
          "finetune_lora": {"grad.dead:no-path"}}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
wrong = []


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def refused(expected, program, *arguments):
    done = run(program, *arguments)
    if done.returncode != 2 or expected not in done.stderr or len(done.stderr.splitlines()) != 1:
        wrong.append(f"{program.name} {arguments}: exit {done.returncode}: {done.stderr}")
    if "planted" in done.stdout:
        wrong.append(f"{program.name} {arguments}: refuses what it says is planted")


def losses(path):
    return [row["loss"] for row in map(json.loads, path.read_text().splitlines()) if "loss" in row]


def alike(shown, found):
    """Whether a line of the README is what was printed: "..." is any text, and numbers with a point
    may differ by a twentieth, as the last bits of a step do between machines, and grow."""
    parts = shown.split("...")
    place = 0
    for part in parts:
        text = NUMBER.split(part)
        pattern = r"(-?\d+(?:\.\d+)?)".join(map(re.escape, text))
        match = re.compile(pattern).search(found, place)
        if match is None:
            return False
        for a, b in zip(NUMBER.findall(part), match.groups()):
            if a != b and ("." not in a or abs(float(a) - float(b)) > 0.05 * abs(float(a)) + 0.002):
                return False
        place = match.end()
    return True


def check(name, lines, fault, folder):
    program = BINARY.parent / f"example_{name}"
    found = len((EXAMPLES / f"{name}.cpp").read_text().splitlines())
    if found != int(lines):
        wrong.append(f"README: {name}.cpp has {found} lines, not {lines}")
    clean = run(program, "--out", folder / name)
    if clean.returncode or json.loads((folder / name / "verdict.json").read_text())["verdict"] != "healthy":
        wrong.append(f"{name}: exit {clean.returncode}: {clean.stdout[-500:]}{clean.stderr}")
    block = re.search(rf"^## {name}\n\n```text\n(.*?)```$", README, re.M | re.S).group(1)
    shown, printed = block.splitlines(), clean.stdout.splitlines()
    for a, b in zip(shown, printed):
        if not alike(a, b):
            wrong.append(f"README, {name}: shows '{a}', printed is '{b}'")
    if len(shown) != len(printed):
        wrong.append(f"README, {name}: {len(shown)} lines of output, printed are {len(printed)}")

    faulty = folder / f"{name}_faulty"
    done = run(program, "--fault", fault, "--out", faulty)
    causes = json.loads((faulty / "verdict.json").read_text())["causes"] if done.returncode == 0 else []
    if [cause["id"] for cause in causes][:1] != [fault.split(":")[0]]:
        wrong.append(f"{name} --fault {fault}: exit {done.returncode}: {done.stdout[-700:]}{done.stderr}")
    if json.loads((faulty / "faults.json").read_text())[0]["fault"] != fault.split(":")[0]:
        wrong.append(f"{name}: faults.json does not hold {fault}")

    for expected, arguments in (("did you mean '--steps'?", ["--stpes", "3"]), ("missing", ["--steps"]),
                                ("whole number", ["--seed=-1"]), ("watch", ["--watch", "closely"]),
                                ("did you mean", ["--fault", "labels.noshift"]),
                                ("there already", ["--out", folder / name])):
        refused(expected, program, *arguments)
    shown = run(program, "--help").stdout
    if "--fault" not in shown or "mystery" in shown:
        wrong.append(f"{name}: --help shows {shown}")
    refused("no mysteries", program, "--fault", "mystery:1")


def check_taken(name, trainable, folder):
    """Nothing is called planted that is not in the program's code, and nothing is left of the try."""
    program = BINARY.parent / f"example_{name}"
    takes = TAKES.get(name, trainable - LEAVES.get(name, set()))
    for fault in sorted(trainable):
        out = folder / f"{name}_{fault}"
        if fault not in takes:
            because = "require a gradient" if name == "finetune_lora" else fault
            refused(because, program, "--fault", fault, "--steps", 1, "--out", out)
            if out.exists() and because == fault:  # else a verdict of the steps until then
                wrong.append(f"{name} --fault {fault}: refused, and left {out.name}")
            continue
        done = run(program, "--fault", fault, "--steps", 1, "--out", out)
        planted = json.loads((out / "faults.json").read_text()) if done.returncode == 0 else []
        if f"planted: {fault}\n" not in done.stdout or len(planted) != 1:
            wrong.append(f"{name} --fault {fault}: exit {done.returncode}: {done.stdout[-300:]}{done.stderr}")


def check_onset_and_seed(folder):
    program = BINARY.parent / "example_mlp"

    def trained(name, *arguments):
        run(program, "--steps", 6, "--out", folder / name, *arguments)
        return losses(folder / name / "metrics.jsonl")

    clean, again, other = trained("clean"), trained("again", "--seed", 1), trained("other", "--seed", 2)
    if clean != again or any(a == b for a, b in zip(clean, other, strict=True)):
        wrong.append(f"--seed: 1 gives {clean} and {again}, 2 gives {other}")
    # Gradients that are not cleared before step 4 change the weights there, and the loss of step 5.
    late = trained("late", "--fault", "optim.missing-zero-grad@step=4")
    if late[:4] != clean[:4] or late[4] == clean[4]:
        wrong.append(f"@step=4: losses {late}, without a fault {clean}")
    (cause,) = json.loads((folder / "late" / "verdict.json").read_text())["causes"]
    if cause["id"] != "optim.missing-zero-grad" or cause["first"]["step"] != 4:
        wrong.append(f"@step=4: verdict {cause}")
    if json.loads((folder / "late" / "faults.json").read_text())[0]["step"] != 4:
        wrong.append("@step=4: faults.json says otherwise")
    refused("after the last step", program, "--steps", 6, "--fault", "optim.missing-zero-grad@step=7")
    never = ["--steps", 6, "--fault", "labels.no-shift@step=3", "--out", folder / "never"]
    refused("never asks", program, *never)
    if (folder / "never").exists():
        wrong.append("a run that was refused at step 3 left its directory")


def check_char_gpt_cuts():
    """A fault that shows only between documents gets the text in verses."""
    program = BINARY.parent / "example_char_gpt"
    done = run(program, "--steps", 40, "--fault", "attn.packing-leak")
    if "documents=verse" not in done.stdout or "attn.packing-leak  confidence" not in done.stdout:
        wrong.append(f"char_gpt in verses: {done.stdout[-500:]}{done.stderr}")


def check_nan():
    """The sign bit of a NaN is no part of it."""
    done = run(BINARY.parent / "example_char_gpt", "--steps", 0, "--fault", "softmax.overflow:naive")
    if "held-out text: nan nats per byte\n" not in done.stdout:
        wrong.append(f"char_gpt without a loss: {done.stdout[-500:]}{done.stderr}")


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    folder = pathlib.Path(folder)
    table = re.findall(r"^\| \[`(\w+)`\]\(\1\.cpp\) \|[^|]*\| (\d+) \| [\d.]+ \| `(.*?)` \|$", README, re.M)
    names = {path.stem for path in EXAMPLES.glob("*.cpp")} - {"example"}
    if {name for name, _, _ in table} != names:
        wrong.append(f"README lists {[name for name, _, _ in table]}, the folder holds {sorted(names)}")
    list(pool.map(lambda row: check(*row, folder), table))
    rows = json.loads(run(BINARY, "lab", "--list", "--json", "-").stdout)
    trainable = {row["id"] + (":" + row["variant"] if row["variant"] else "") for row in rows if row["train"]}
    list(pool.map(lambda name: check_taken(name, trainable, folder), sorted(names)))
    check_onset_and_seed(folder)
    check_char_gpt_cuts()
    check_nan()

    # The same sums in another order: some roundings of 2^-24 each, carried through 20 small steps.
    done = run(BINARY, "train", "tiny", "--steps", 20, "--watch", "off", "--out", folder / "nn")
    if done.returncode:
        wrong.append(f"train tiny: {done.stderr}")
    by_hand = losses(folder / "gpt_one_file" / "metrics.jsonl")[:20]
    by_parts = losses(folder / "nn" / "metrics.jsonl")
    for step, (a, b) in enumerate(zip(by_hand, by_parts, strict=True), 1):
        if not abs(a - b) <= 1e-5 * b:
            wrong.append(f"gpt_one_file: loss {a} at step {step}, train tiny has {b}")
    if len((EXAMPLES / "gpt_one_file.cpp").read_text().splitlines()) > 250:
        wrong.append("gpt_one_file.cpp has more than 250 lines")

if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(table)} examples healthy when clean, and their faults named")
