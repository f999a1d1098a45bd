#!/usr/bin/env python3
"""Runs each ```bash block of README.md and docs/tour.md in the checkout, so that what they say works.
A fence tagged `bash no-run` is not run. Prints each command and its time; stops at the first that fails.

usage: readme_blocks.py [--skip COMMAND]...   --skip leaves out a line that is run elsewhere"""
import argparse
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```bash[ \t]*\n(.*?)^```[ \t]*$", re.M | re.S)


PAGES = ["README.md", "docs/tour.md"]


def main():
    parser = argparse.ArgumentParser(description=f"Runs the bash blocks of {' and '.join(PAGES)}.")
    parser.add_argument("--skip", action="append", default=[], metavar="COMMAND")
    skip = set(parser.parse_args().skip)
    return 0 if all(run_blocks(page, skip) for page in PAGES) else 1


def run_blocks(page, skip):
    """Whether every block of the page succeeds; stops at the first that does not."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    ran = 0
    for block in blocks:
        lines = [l for l in block.splitlines() if l.split("#")[0].strip() not in skip]
        script = "\n".join(lines).strip()
        if not script:
            continue
        print("$ " + script.replace("\n", "\n  "), flush=True)
        begin = time.monotonic()
        status = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT,
                                stdin=subprocess.DEVNULL).returncode
        print(f"  {time.monotonic() - begin:.0f} s", flush=True)
        if status:
            print(f"{page}: this block ended with {status}")
            return False
        ran += 1
    print(f"{page}: {ran} of {len(blocks)} blocks run, all succeed")
    return True


if __name__ == "__main__":
    sys.exit(main())
