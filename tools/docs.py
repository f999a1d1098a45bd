#!/usr/bin/env python3
"""Writes the pages of docs/ that come from the source: docs/reference/ops.md from core/ops.def, and
docs/faults/ from the case files, by way of `faultline explain` and docs/faults/measured.json, and
from the PyTorch code in lab/pytorch/.

usage: docs.py [--check | --measure [ID...]]
  --check    writes nothing and fails when a page is not what it should be
  --measure  first runs the lab and `train char` for what is new or has changed, or for the faults
             named, and writes their figures to docs/faults/measured.json (some minutes a fault)"""
import argparse
import os
import pathlib
import sys

from pages import fault_page, measured, ops, picture, pytorch, source

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAULTS = "docs/faults"
FIGURES = f"{FAULTS}/measured.json"


def fault_pages(faults, known, console):
    """({path: text} of every page, what is wrong in one line each, ids to measure). A page is made only
    where the lab verifies its cases today and says what the page would."""
    ids = [fault["id"] for fault in faults]
    pages, mistakes, stale = {f"{FAULTS}/README.md": fault_page.index(faults)}, [], []
    for fault in faults:
        id_, entry = fault["id"], known.faults.get(fault["id"])
        try:
            fault_page.check(fault)
            code = source.region(ROOT, id_)
            if why := measured.why_stale(fault, entry):
                stale.append(id_)
                raise source.Mistake(f"it {why}")
            if name := measured.differs_from_lab(fault, entry, console):
                stale.append(id_)
                raise source.Mistake(f"the lab tells otherwise of {name} than the page")
            drawing, alt = picture.draw(entry["lab"])
            if len(drawing.encode()) > picture.MOST_BYTES:
                raise source.Mistake(f"its picture has {len(drawing.encode())} bytes; at most "
                                     f"{picture.MOST_BYTES}: record fewer points or a smaller grid")
            pytorch.check_figures(ROOT, id_, fault_page.page(fault, entry, code, None, alt, ids))
            pages[f"{FAULTS}/{id_}.svg"] = drawing
            pages[f"{FAULTS}/{id_}.md"] = fault_page.page(fault, entry, code,
                                                          pytorch.section(ROOT, id_), alt, ids)
        except (source.Mistake, measured.Failed) as mistake:
            mistakes.append(f"{id_}: {mistake}")
    mistakes += [f"{path}: there is no fault of that name" for path in pytorch.left_over(ROOT, ids)]
    return pages, mistakes, stale


def left_over(faults):
    """Pages of faults that there are no more."""
    ids = {fault["id"] for fault in faults}
    files = [*(ROOT / FAULTS).glob("*.md"), *(ROOT / FAULTS).glob("*.svg")]
    return sorted(f for f in files if f.name != "README.md" and f.stem not in ids)


def differing(pages):
    """The paths at which the page is not there or has another text."""
    read = lambda path: (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else None
    return [path for path, text in pages.items() if read(path) != text]


def arguments():
    parser = argparse.ArgumentParser(prog="./x docs", description="Writes the generated pages of docs/.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail when a page has drifted")
    what.add_argument("--measure", nargs="*", metavar="ID",
                      help="first measure what is new or has changed, or the faults named")
    return parser.parse_args()


def main():
    asked = arguments()
    laboratory = measured.Laboratory(os.environ.get("FAULTLINE_BINARY",
                                                    str(ROOT / "build/release/bin/faultline")))
    known = measured.Measured(ROOT / FIGURES)
    try:
        faults, console = laboratory.faults(), laboratory.output()
    except measured.Failed as failed:
        print(f"docs: {failed}")
        return 1
    failures = []
    if asked.measure is not None:
        failures = measured.measure(laboratory, faults, known, console, asked.measure)
    pages, mistakes, stale = fault_pages(faults, known, console)
    pages["docs/reference/ops.md"] = ops.ops_page(ROOT)
    drifted, removed = differing(pages), left_over(faults)
    if not asked.check:
        for path in drifted:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(pages[path], encoding="utf-8")
        for page in removed:
            page.unlink()
    return report(asked.check, drifted + [str(p.relative_to(ROOT)) for p in removed],
                  failures + mistakes, stale)


def report(check, drifted, mistakes, stale):
    for mistake in mistakes:
        print(f"docs: {mistake}")
    if stale:
        print("docs: to measure them, run ./x docs --measure " + " ".join(stale))
    if check and drifted:
        print("docs: out of date, run ./x docs: " + ", ".join(drifted))
    elif drifted:
        print("docs: written: " + ", ".join(drifted))
    elif not mistakes:
        print("docs: up to date")
    return 1 if mistakes or check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
