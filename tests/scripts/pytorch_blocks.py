"""The PyTorch blocks of the pages of the faults: what is taken from a page, what counts as a difference,
and which pages are refused. Nothing here needs PyTorch; ./x interop runs the blocks themselves."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ["FAULTLINE_SOURCE_DIR"])
sys.path[:0] = [str(ROOT / "tests/interop"), str(ROOT / "tools")]
import blocks
from pages import pytorch
from pages.source import Mistake

CODE, TEXT = "```python\nprint(1 + 1)\n```\n", "```text\n2\n```\n"
wrong = []


def expect(what, holds):
    if not holds:
        wrong.append(what)


def refuses(what, words, error, call, *arguments):
    try:
        call(*arguments)
    except error as mistake:
        expect(f"{what}: '{mistake}' lacks '{words}'", words in str(mistake))
    else:
        wrong.append(f"{what} is taken")


# ---- What is taken from a page.

page = f"# A\n\n```cpp\nint x;\n```\n\n{CODE}\nIt prints\n\n{TEXT}\n```text\nmore\n```\n"
expect("the block is not what the page says", blocks.blocks_of(page) == [("print(1 + 1)\n", "2\n")])
expect("a page without Python has a block", blocks.blocks_of(f"# A\n\n{TEXT}") == [])
for what, text in [("no text", CODE), ("another block in between", f"{CODE}```cpp\nint x;\n```\n{TEXT}"),
                   ("Python behind Python", CODE + CODE + TEXT), ("an empty text", f"{CODE}```text\n```\n")]:
    refuses(what, "line 1: no text block", blocks.Malformed, blocks.blocks_of, text)
refuses("a block without an end", "line 1: this block has no end", blocks.Malformed, blocks.blocks_of, CODE[:-4])

# ---- What it does with them: rows, and exit 1 unless all agree.

with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "own.fault.md"
    for what, text, code, row in [
            ("a right block", CODE + TEXT, 0, "1 equal"),
            ("another figure", CODE + TEXT.replace("2", "3"), 1, "FAILED: parts at 0"),
            ("a line too many", CODE + TEXT.replace("2", "2\n2"), 1, "FAILED: parts at 1"),
            ("a space too many", CODE + TEXT.replace("2", "2 "), 1, "FAILED: parts at 0"),
            ("an error", CODE.replace("1 + 1", "1 / 0") + TEXT, 1, "FAILED: exit 1: ZeroDivisionError"),
            ("no text", CODE, 1, "FAILED: line 1"), ("no block", "# A\n", 1, "FAILED: there is none")]:
        file.write_text(text)
        done = subprocess.run([sys.executable, ROOT / "tests/interop/blocks.py", file], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect(f"{what}: exit {done.returncode}, expected '{row}': {done.stdout} {done.stderr}",
               done.returncode == code and row in done.stdout and "Traceback" not in done.stderr)
blocks.SECONDS = 0.5
printed, failure = blocks.run("import threading\nthreading.Event().wait()\n")
expect(f"a block that hangs: {failure}", failure is not None and "did not end" in failure)

# ---- The files that the pages show.

GOOD = "print(1 + 1)\n# prints:\n# 2\n"
mended = "# mended: It was so\n# up to release 1.\n"
expect("the parts of a file", pytorch.parts(GOOD + mended, "f") == ("print(1 + 1)", "2", "It was so up to release 1."))
for what, words, text in [("nothing that it prints", "0 lines '# prints:'", "print(2)\n"),
                          ("an empty output", "at least one line", "print(2)\n# prints:\n"),
                          ("code behind the output", "each must begin", GOOD + "print(3)\n"),
                          ("no code", "no code", "# prints:\n# 2\n"),
                          ("long code", "21 lines of code; at most 20", "x = 1\n" * 20 + GOOD),
                          ("a long line", "line 1 is longer", "x = 1" + 96 * " " + "\n" + GOOD)]:
    refuses(what, words, Mistake, pytorch.parts, text, "f")
for printed, known, same in [("3.75", "3.750000", True), ("0.2041", "0.204104", True), ("nan", "nan", True),
                             ("-inf", "-inf", True), ("1000", "1,000", True), ("0.2041", "0.2043", False),
                             ("nan", "1", False), ("inf", "-inf", False), ("4", "3.75", False)]:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / pytorch.file("own.fault")
        file.parent.mkdir(parents=True)
        file.write_text(f"print()\n# prints:\n# y {printed}\n")
        arguments = pathlib.Path(folder), "own.fault", f"  faulty   y {known}  own.detector, step"
        if same:
            pytorch.check_figures(*arguments)
        else:
            refuses(f"{printed} for {known}", "no figure of its page", Mistake, pytorch.check_figures, *arguments)

if wrong:
    sys.exit("\n".join(wrong))
print("blocks taken from pages, compared exactly, and refused where a page is malformed")
