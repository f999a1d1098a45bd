"""Compares faultline with PyTorch on the same training step, the two taking turns in one run.

Turns, because a machine's speed drifts: both must meet the same drift. Run it with a Python that
has PyTorch, on a machine with nothing else to do. The ratio is ours to the faster of eager and
compiled PyTorch, in tokens a second: above 1, faultline is faster.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Passed to both sides; tiny and char are timed at the batch and sequence of their presets.
SIZE = {
    "gpt2": ["gpt2", "--batch", "4", "--seq", "64"],
    "gpt2-long": ["gpt2", "--batch", "1", "--seq", "1024"],
    "char": ["char"],
    "tiny": ["tiny"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", metavar="MODEL", nargs="+", choices=SIZE, help=", ".join(SIZE))
    parser.add_argument("--rounds", type=int, default=4, help="turns of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--faultline", default="build/release/bin/faultline", help="our binary")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    if not pathlib.Path(arguments.faultline).is_file():
        parser.error(
            f"no binary at {arguments.faultline}: run ./x build, or name it with --faultline"
        )
    return arguments


def measured(command):
    """The JSON that a benchmark prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def take_turns(model, arguments):
    """side -> its results, one a round."""
    shared = [*SIZE[model], "--threads", str(arguments.threads)]
    binary = str(pathlib.Path(arguments.faultline).resolve())
    peer = [sys.executable, str(HERE / "torch_gpt2_step.py"), *shared]
    commands = {"faultline": [binary, "bench", *shared, "--json", "-"], "eager": peer}
    if not arguments.no_compile:
        commands["compile"] = [*peer, "--compile"]
    results = {side: [] for side in commands}
    for _ in range(arguments.rounds):
        for side, command in commands.items():
            results[side].append(measured(command))
    return results


def median(results, key):
    return statistics.median(result[key] for result in results)


def report(model, results):
    ours = results["faultline"]
    speed = {side: median(runs, "tokens_per_s") for side, runs in results.items()}
    best = max((side for side in speed if side != "faultline"), key=speed.get)
    first = ours[0]
    print(
        f"{model}, batch {first['batch']}, sequence {first['seq']}, {first['threads']} threads, "
        f"{first['isa']}, PyTorch {results['eager'][0]['torch']}"
    )
    for side, runs in results.items():
        speeds = [run["tokens_per_s"] for run in runs]
        print(
            f"  {side:<9} {median(runs, 'ms_per_step'):9.2f} ms/step {speed[side]:10.0f} tokens/s"
            f"  (from {min(speeds):.0f} to {max(speeds):.0f})"
        )
    print(
        f"  ratio to {best}: {speed['faultline'] / speed[best]:.2f}, "
        f"efficiency {median(ours, 'efficiency'):.2f}",
        flush=True,
    )


def main():
    arguments = parse_arguments()
    for model in arguments.models:
        report(model, take_turns(model, arguments))


if __name__ == "__main__":
    main()
