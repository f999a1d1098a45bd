"""Measures what the event layer costs a training step when nobody listens.

Builds a second binary whose event layer is compiled out, and lets the two take turns. A pair gives
one ratio of their step times; the printed bound is the upper end of the 95 % confidence interval
of the mean ratio. Run it from the repository's root, after ./x build, on a machine with nothing
else to do. Exit 1 when the bound is above --most.
"""

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUDENT_AT_LEAST_39 = 2.023  # two-sided 95 %, 39 degrees of freedom; smaller for more pairs


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="char", help="char (the default), tiny or gpt2")
    parser.add_argument("--pairs", type=int, default=40, help="at least 40")
    parser.add_argument("--steps", type=int, default=15, help="steps of one run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--most", type=float, default=0.5, help="the largest bound, in percent")
    parser.add_argument("--with-events", default=ROOT / "build/release/bin/faultline")
    parser.add_argument("--without-events", help="a binary built with -DFAULTLINE_NO_EVENTS")
    arguments = parser.parse_args()
    if arguments.pairs < 40:
        parser.error(f"--pairs must be at least 40, got {arguments.pairs}")
    return arguments


def build_without_events():
    folder = ROOT / "build/no-events"
    subprocess.run(["cmake", "--preset", "release", "-B", str(folder),
                    "-DCMAKE_CXX_FLAGS=-DFAULTLINE_NO_EVENTS"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder), "--target", "faultline"],
                   check=True, stdout=subprocess.DEVNULL)
    return folder / "bin/faultline"


def step_time(binary, arguments):
    command = [str(binary), "bench", arguments.model, "--threads", str(arguments.threads),
               "--steps", str(arguments.steps), "--json", "-"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["ms_per_step"]


def main():
    arguments = parse_arguments()
    without = arguments.without_events or build_without_events()
    order = random.Random(1)
    ratios = []
    for _ in range(arguments.pairs):
        pair = [("with", arguments.with_events), ("without", without)]
        order.shuffle(pair)
        times = {side: step_time(binary, arguments) for side, binary in pair}
        ratios.append(math.log(times["with"] / times["without"]))
    mean = statistics.mean(ratios)
    half = STUDENT_AT_LEAST_39 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    cost, bound = (100 * math.expm1(x) for x in (mean, mean + half))
    print(f"{arguments.model}, {arguments.pairs} pairs, {arguments.threads} threads: "
          f"the event layer costs {cost:+.2f} %, at most {bound:+.2f} % (95 %)")
    sys.exit(bound > arguments.most)


if __name__ == "__main__":
    main()
