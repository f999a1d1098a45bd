#!/usr/bin/env python3
"""Runs the PyTorch code of the pages of the faults, as it stands there: each ```python block in a
process of its own, whose output must be the ```text block behind it.

usage: blocks.py [PAGE...]   without a page: all of docs/faults/"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from table import Table

PAGES = pathlib.Path(__file__).resolve().parents[2] / "docs/faults"
FENCE = re.compile(r"^```(.*)$")
SECONDS = 120  # what takes so long hangs: a block computes for less than a second


class Malformed(Exception):
    """What is wrong with a page, in one line."""


def fenced(text):
    """(the number of its first line, its tag, its content) of every fenced block."""
    found, begin, tag, content = [], None, "", []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and begin is None:
            begin, tag, content = number, fence[1].strip(), []
        elif fence and not fence[1].strip():
            found.append((begin, tag, "\n".join(content) + "\n"))
            begin = None
        elif begin is not None:
            content.append(line)
    if begin is not None:
        raise Malformed(f"line {begin}: this block has no end")
    return found


def blocks_of(text):
    """(code, what it must print) of every block of Python."""
    found = fenced(text)
    blocks = []
    for (line, tag, code), (_, next_tag, printed) in zip(found, [*found[1:], (0, "", "")]):
        if tag != "python":
            continue
        if next_tag != "text" or not printed.strip():
            raise Malformed(f"line {line}: no text block with what it prints follows this Python")
        blocks.append((code, printed))
    return blocks


def run(code):
    """What the code printed, and why it failed if it did."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "block.py"
        file.write_text(code, encoding="utf-8")
        try:
            done = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True,
                                  encoding="utf-8", timeout=SECONDS, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"})
        except subprocess.TimeoutExpired:
            return "", f"it did not end within {SECONDS} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return done.stdout, f"exit {done.returncode}: {last}"
    return done.stdout, None


def compare(table, pages):
    """A row for each page with a block; a page without one has none."""
    blocks = []
    for page in pages:
        try:
            blocks += [(page.stem, *block) for block in blocks_of(page.read_text(encoding="utf-8"))]
        except Malformed as malformed:
            table.none(f"{page.stem}: its PyTorch block", [str(malformed)])
    if not blocks:
        table.none("the blocks of the pages", ["there is none"])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ran = pool.map(lambda block: run(block[1]), blocks)
        for (name, _, expected), (printed, failure) in zip(blocks, ran):
            what = f"{name}, in PyTorch: lines printed"
            if failure:
                table.none(what, [failure])
                continue
            table.equal(what, printed.splitlines(), expected.splitlines())
            if printed != expected:
                print(f"  expected: {expected!r}\n  printed:  {printed!r}")


def all_pages():
    return sorted(page for page in PAGES.glob("*.md") if page.name != "README.md")


def main():
    table = Table()
    compare(table, [pathlib.Path(page) for page in sys.argv[1:]] or all_pages())
    if table.failed:
        sys.exit(f"blocks: {table.failed} rows failed")
    print("blocks: every row agrees")


if __name__ == "__main__":
    main()
