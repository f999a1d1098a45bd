"""`bench --profile` shows the step and nothing else: no row of its own measuring, no number that is
none, and bounds that add up to the sum of the rows."""
import os
import re
import subprocess
import sys

BINARY = os.environ["FAULTLINE_BINARY"]


def bench(*arguments):
    return subprocess.run([BINARY, "bench", "tiny", "--steps", "5", "--threads", "1", *arguments], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


wrong = []
done = bench("--profile")
rows = re.findall(r"^((?:forward|backward|optimizer|other) .+?) {2,}(\d+) +([\d.]+) +([\d.]+) ", done.stdout, re.M)
total = re.search(r"^all +([\d.]+) +([\d.]+)$", done.stdout, re.M)
if done.returncode or total is None or len(rows) < 20:
    sys.exit(f"exit {done.returncode}, {len(rows)} rows: {done.stdout[-600:]} {done.stderr}")
if re.search(r"\b(nan|inf)\b", done.stdout):
    wrong.append("a number of the table is none")
if "1024x1024x1024" in done.stdout:
    wrong.append("the table holds the product that measures the machine")
names = [name for name, *_ in rows]
for name in ("forward linear", "backward matmul", "optimizer adamw", "forward layer_norm"):
    if not any(row.startswith(name) for row in names):
        wrong.append(f"there is no row for {name}: {names}")
for column, name in ((2, "ms"), (3, "bound ms")):
    # Each row is rounded to a thousandth.
    found, said = sum(float(row[column]) for row in rows), float(total.group(column - 1))
    if abs(found - said) > 0.0006 * (len(rows) + 2):
        wrong.append(f"the {name} of the rows add up to {found}, the table says {said}")

done = bench("--profile", "--json", "-")
if done.returncode != 2 or len(done.stderr.splitlines()) != 1 or done.stdout:
    wrong.append(f"--profile with --json -: exit {done.returncode} {done.stdout!r} {done.stderr!r}")
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(rows)} rows add up")
