"""Compares `faultline bench gpt2 --decode` with transformers, the two taking turns in one run.

Turns, because a machine's speed drifts. Run it with a Python that has PyTorch and transformers, on
a machine with nothing else to do. The ratio is ours to theirs in tokens a second; the fraction is
of the pace at which every weight is read once a token.
"""

import argparse
import pathlib
import statistics
import sys

import compare

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side")
    parser.add_argument("--steps", type=int, default=24, help="tokens of a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--faultline", default="build/release/bin/faultline", help="our binary")
    arguments = parser.parse_args()
    shared = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    binary = str(pathlib.Path(arguments.faultline).resolve())
    commands = {
        "faultline": [binary, "bench", "gpt2", "--decode", *shared, "--json", "-"],
        "transformers": [sys.executable, str(HERE / "torch_decode.py"), *shared],
    }
    results = {side: [] for side in commands}
    for _ in range(arguments.rounds):
        for side, command in commands.items():
            results[side].append(compare.measured(command))
    for side, runs in results.items():
        speeds = [run["tokens_per_s"] for run in runs]
        print(
            f"{side:<13} {statistics.median(speeds):8.2f} tokens/s"
            f"  (from {min(speeds):.2f} to {max(speeds):.2f})"
        )
    ours, theirs = (statistics.median(r["tokens_per_s"] for r in runs) for runs in results.values())
    fraction = statistics.median(run["efficiency"] for run in results["faultline"])
    gigabytes = statistics.median(run["read_bytes_per_s"] for run in results["faultline"]) / 1e9
    versions = results["transformers"][0]
    print(
        f"ratio {ours / theirs:.2f}, {fraction:.2f} of the bound at {gigabytes:.1f} GB/s;"
        f" transformers {versions['transformers']}, PyTorch {versions['torch']}"
    )


main()
