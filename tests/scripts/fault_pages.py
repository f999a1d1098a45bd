"""The pages of the faults: `docs.py --measure` writes them, `--check` holds them to their sources,
and a case whose page cannot be right is refused in one line that says why. A program that stands in
for `faultline` gives the answers, so nothing here is trained."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ["FAULTLINE_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "tools"))
from pages import measured
HEADINGS = ["What you see", "What happens", "The smallest code that shows it", "Would you notice?",
            "Who catches it", "The fix", "Exercise", "Sources"]
CASE = "namespace {\n  // page: begin\n  int wrong() { return 2; }\n  // page: end\n}\n"
FORM = {"name": "", "title": "It goes wrong", "detector": "own.detector", "claimed": "the article's line",
        "expected": [{"name": "m", "value": 2, "bound": 0, "reason": ""}],
        "training": {"steps": 200, "needs": {"pack": "false"}}, "no_training": None}
FAULT = {"id": "own.fault-one", "title": "A fault", "domain": "own", "seed": "004 3.1",
         "mechanism": "2 + 2 * 2 is not 8.", "symptom": "A symptom.", "article_says": "A claim.",
         "truth": "A truth.", "fix": "A fix.", "look_alikes": "A look-alike.", "exercise": "A question?",
         "answer": "An answer.", "detector": "own.detector", "variants": [""], "forms": [FORM],
         "detectors": [{"name": "own.detector", "level": "light", "causes": [
             {"id": "own.fault-one", "mechanism": "m", "fix": "f", "refuted_by": "It is right."}]}],
         "sources": ["A source (2026). https://example.org/a_b."]}

# Answers as the binary would, from faults.json beside it, and notes what it was asked.
STAND_IN = '''#!/usr/bin/env python3
import json, pathlib, sys
here, asked = pathlib.Path(__file__).parent, sys.argv[1:]
faults = json.loads((here / "faults.json").read_text())
with open(here / "asked.txt", "a") as f: f.write(" ".join(asked[:2]) + "\\n")
after = lambda flag: pathlib.Path(asked[asked.index(flag) + 1])
if asked[0] == "--version": print("faultline 9.9.9")
elif asked[0] == "explain": print(json.dumps(faults))
elif asked[0] == "lab":
    fault = next((f for f in faults if f["id"] == asked[1]), faults[0])
    run = lambda m, y: {"metrics": {"m": m}, "pictures": {"grids": [], "curves": [
        {"name": "m", "x": list(range(len(y))), "y": y}]}}
    print(fault["id"] + "   It goes wrong\\n  healthy  m 1  silent\\n  faulty   m 2  own.detector, step "
          + str(fault.get("seen", 1)) + "\\n  fixed    m 1  silent, equal to healthy\\n  verified 0.3 s   faultline explain " + fault["id"])
    curve = fault.get("curve", [1, 2, "nan"])
    if "--json" in asked: after("--json").write_text(json.dumps([{"id": fault["id"], "variant": "", "why": "it was not",
        "verdict": fault.get("verdict", "verified"), "healthy": run(1, [1, 1, 1]), "faulty": run(2, curve),
        "claimed": {"outcome": "hides"}}]))
elif asked[0] == "generate":
    planted = "--fault" in asked
    after("--json").write_text(json.dumps({"tokens": [1, 2 + planted], "detections": [
        {"detector": "own.detector", "cause": "own.fault-one", "evidence": "page 0 | slot 1"}] if planted else []}))
else:
    out = after("--out"); out.mkdir()
    slow = 2 if "--fault" in asked else 1
    rows = [{"step": s, "loss": 5 - s / 50 / slow} for s in range(1, 101)] + [{"step": 100, "eval_loss": 3.5}]
    (out / "metrics.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in rows))
    (out / "config.json").write_text(json.dumps({"isa": "v9"}))
    if "--fault" in asked:
        (out / "verdict.json").write_text(json.dumps({"causes": [{"id": "own.fault-one", "first": {"step": 7}}]}))
'''
wrong = []


def expect(what, holds):
    if not holds:
        wrong.append(what)


class Tree:
    """A tree with one fault, and the generator in it."""

    def __init__(self, folder):
        self.root = folder
        shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for path in ("core/ops.def", "kernels/elementwise.h"):
            (folder / path).parent.mkdir()
            shutil.copy(ROOT / path, folder / path)
        (folder / "lab/cases").mkdir(parents=True)
        self.binary = folder / "stand_in"
        self.binary.write_text(STAND_IN)
        self.binary.chmod(0o755)
        self.write_fault()
        self.write_case(CASE)

    def write_fault(self, **changes):
        (self.root / "faults.json").write_text(json.dumps([{**FAULT, **changes}]))

    def write_case(self, code):
        (self.root / "lab/cases/own_fault_one.cpp").write_text(code)

    def write_pytorch(self, stem, code):
        file = self.root / f"lab/pytorch/{stem}.py"
        file.parent.mkdir(exist_ok=True)
        if code is None:
            file.unlink()
        else:
            file.write_text(code)

    def docs(self, *arguments):
        done = subprocess.run([sys.executable, self.root / "tools/docs.py", *arguments], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "FAULTLINE_BINARY": str(self.binary)})
        return done.returncode, done.stdout

    def refuses(self, what, words, *arguments):
        code, said = self.docs(*(arguments or ["--check"]))
        lines = [line for line in said.splitlines() if words in line]
        expect(f"{what}: exit {code}, expected one line with '{words}': {said}",
               code == 1 and len(lines) == 1 and "Traceback" not in said)

    def asked(self, command):
        return sum(line.startswith(command) for line in (self.root / "asked.txt").read_text().splitlines())


with tempfile.TemporaryDirectory() as folder:
    tree = Tree(pathlib.Path(folder))
    pages = tree.root / "docs/faults"

    tree.refuses("not measured", "own.fault-one: it has not been measured")
    tree.refuses("not measured", "run ./x docs --measure own.fault-one")
    expect("--check writes nothing", not pages.exists())
    pages.mkdir(parents=True)

    code, said = tree.docs("--measure")
    expect(f"--measure: exit {code}: {said}", code == 0)
    page = (pages / "own.fault-one.md").read_text()
    found = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    expect(f"the page's order is {found}", found == HEADINGS)
    for part in ("  verified   faultline explain own.fault-one", "int wrong() { return 2; }\n```",
                 "<https://example.org/a_b>.", "2 + 2 \\* 2 is not 8.", "| faulty | 4.9900 |", "it hides the fault",
                 "`own.fault-one` at step 7", "`pack=false`", "<details>\n<summary>Answer</summary>\n\nAn answer.",
                 "(own.fault-one.svg)", "nan from 2 on"):
        expect(f"the page lacks {part!r}:\n{page}", part in page)
    expect("the index lacks the fault", "[`own.fault-one`](own.fault-one.md)" in (pages / "README.md").read_text())
    expect("the picture is not drawn", (pages / "own.fault-one.svg").read_text().count("<path") > 8)

    code, said = tree.docs("--check")
    expect(f"--check after --measure: exit {code}: {said}", code == 0 and "up to date" in said)
    trained = tree.asked("train")
    expect("--measure trains twice a fault", trained == 2)
    tree.docs("--measure")
    expect("--measure does again what it has done", tree.asked("train") == trained)
    tree.docs("--measure", "own.fault-one")
    expect("--measure ID does not do it again", tree.asked("train") > trained)
    tree.refuses("an unknown fault", "own.nothing: there is no such fault", "--measure", "own.nothing")

    # Drift.
    (pages / "own.fault-one.md").write_text(page + "by hand\n")
    tree.refuses("a page changed by hand", "out of date, run ./x docs: docs/faults/own.fault-one.md")
    (pages / "gone.md").write_text("of a fault that there was\n")
    tree.docs()
    expect("docs does not mend a page", (pages / "own.fault-one.md").read_text() == page)
    expect("docs leaves the page of a fault that is gone", not (pages / "gone.md").exists())
    tree.write_fault(symptom="Another symptom.")
    tree.refuses("a text that has changed", "docs/faults/own.fault-one.md")
    tree.write_fault(forms=[{**FORM, "expected": [{"name": "m", "value": 3, "bound": 0, "reason": ""}]}])
    tree.refuses("a figure that has changed", "run ./x docs --measure own.fault-one")
    tree.write_fault(forms=[{**FORM, "training": {"steps": 200, "needs": {}}}])
    tree.refuses("settings that have changed", "it has another training form than when it was measured")

    tree.write_fault(seen=2)
    tree.refuses("a detector that fires elsewhere", "own.fault-one: the lab tells otherwise of own.fault-one than the page")
    tree.write_fault(seen="one")
    tree.refuses("a word that has changed", "the lab tells otherwise")
    tree.docs("--measure")
    code, said = tree.docs("--check")
    expect(f"--measure leaves what the lab tells otherwise: {said}", code == 0)
    tree.write_fault(curve=[5, 0, 5])
    tree.docs("--measure", "own.fault-one")
    expect("a dip is not told to who cannot see it",
           "faulty from 5 to 5, as low as 0" in (pages / "own.fault-one.md").read_text())
    tree.write_fault()
    tree.docs("--measure")

    for shown, said, same in [("p 0.204104", "p 0.204101", True), ("loss nan", "loss nan", True),
                              ("256 counted", "250 counted", False), ("step 257,", "step 257", False),
                              ("loss 5.0", "loss inf", False), ("loss -inf", "loss inf", False),
                              ("loss 0.50", "loss 0.60", False)]:
        expect(f"'{shown}' and '{said}' are {'not ' * same}alike", measured.alike(shown, said) == same)

    # Cases whose page cannot be right.
    tree.write_fault(mechanism="word " * 151)
    tree.refuses("a long mechanism", "own.fault-one: its mechanism has 151 words; at most 150")
    tree.write_fault(exercise="")
    tree.refuses("no exercise", "own.fault-one: its text has no exercise")
    tree.write_fault()
    tree.write_case("int wrong();\n")
    tree.refuses("no region", "own.fault-one: lab/cases/own_fault_one.cpp has 0 marks")
    tree.write_case("// page: begin\n" + "int x;\n" * 21 + "// page: end\n")
    tree.refuses("a long region", "21 lines between the marks of the page; at most 20")
    tree.write_case(CASE)
    tree.write_fault(curve=[i * 1.000001 for i in range(9000)])
    tree.refuses("a large picture", "own.fault-one: its picture has", "--measure", "own.fault-one")
    tree.write_fault(verdict="failed")
    tree.refuses("a case that fails", "own.fault-one is not verified: it was not", "--measure", "own.fault-one")

    # PyTorch code, where the fault has some.
    tree.write_fault()
    tree.docs("--measure", "own.fault-one")
    tree.write_pytorch("own_fault_one", "print(2)\n# prints:\n# m 2\n# mended: Release 1 was the last.\n")
    tree.docs()
    page = (pages / "own.fault-one.md").read_text()
    found = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    expect(f"the order with PyTorch is {found}", found == HEADINGS[:3] + ["The same in PyTorch"] + HEADINGS[3:])
    for part in ("```python\nprint(2)\n```", "```text\nm 2\n```", "Release 1 was the last.", "(../../lab/pytorch/own_fault_one.py)"):
        expect(f"the page lacks {part!r}", part in page)
    tree.write_pytorch("own_fault_one", "print(2)\n# prints:\n# m 7.5\n")
    tree.refuses("a figure of PyTorch alone", "lab/pytorch/own_fault_one.py prints 7.5, which is no figure")
    tree.write_pytorch("own_fault_one", "print(2)\n")
    tree.refuses("PyTorch without output", "own.fault-one: lab/pytorch/own_fault_one.py has 0 lines '# prints:'")
    tree.write_pytorch("own_fault_one", None)
    tree.write_pytorch("gone", "print(2)\n")
    tree.refuses("PyTorch of no fault", "lab/pytorch/gone.py: there is no fault of that name")
    tree.write_pytorch("gone", None)

    # A reason in place of the code.
    tree.write_pytorch("own_fault_one", "# none: PyTorch has no\n# such thing.\n")
    tree.docs()
    expect("the page does not say why there is no PyTorch",
           "## The same in PyTorch\n\nPyTorch has no such thing.\n" in (pages / "own.fault-one.md").read_text())
    tree.write_pytorch("own_fault_one", "# none: PyTorch has no\nprint(1)\n")
    tree.refuses("code behind a reason", "behind '# none:' there must be comments only")
    tree.write_pytorch("own_fault_one", None)

    # Where text is generated, the commands, the flags and what is named.
    spoken = {**FORM, "training": None, "no_training": "it is elsewhere"}
    tree.write_fault(forms=[{**spoken, "generation": {"needs": {}}}])
    tree.docs("--measure")
    tree.write_fault(forms=[{**spoken, "generation": {"needs": {"beside": "two words"}}}])
    tree.refuses("other flags", "it can be planted in generation otherwise")
    code, said = tree.docs("--measure")
    page = (pages / "own.fault-one.md").read_text()
    for part in ("--watch full --fault own.fault-one\n```", "**Only beside a healthy text**", "`--beside 'two words'`",
                 "| other tokens | `own.fault-one`: page 0 \\| slot 1 |"):
        expect(f"the page lacks {part!r}: {said}", code == 0 and part in page)
    expect("the lab alone shows it", "lab alone" not in page)

    # Without a training form there is the reason in place of the losses.
    tree.write_fault(forms=[{**FORM, "training": None, "no_training": "it needs two machines"}])
    code, said = tree.docs("--measure", "own.fault-one")
    page = (pages / "own.fault-one.md").read_text()
    expect(f"the reason is not on the page: {said}", code == 0 and "it needs two machines" in page)

if wrong:
    sys.exit("\n".join(wrong))
print("pages written, held to their sources, and refused where they cannot be right")
