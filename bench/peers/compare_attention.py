"""Compares attention by tiles with PyTorch's scaled_dot_product_attention on the CPU: causal, f32,
forward and backward, the two taking turns in one run.

Turns, because a machine's speed drifts: both must meet the same drift. Run it with a Python that has
PyTorch, on a machine with nothing else to do, after ./x bench attention has built our side. The
ratio is PyTorch's least time to ours: above 1, faultline is faster.
"""

import argparse
import json
import pathlib
import os
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIZES = ["4x2x32x16", "4x12x64x64", "16x4x128x32"]
SIZES += [f"1x12x{length}x64" for length in (512, 1024, 2048, 4096, 8192)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sizes", metavar="BATCHxHEADSxTxD", nargs="*", default=SIZES, help="any of the benchmark's"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--seconds", type=float, default=1, help="time for each size and turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--benchmark", default="build/release/bin/faultline_op_bench", help="our binary"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    unknown = set(arguments.sizes) - set(SIZES)
    if unknown:
        parser.error(f"no such size: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    if not pathlib.Path(arguments.benchmark).is_file():
        parser.error(
            f"no binary at {arguments.benchmark}: run ./x bench attention, or name it with "
            "--benchmark"
        )
    return arguments


def measured(command, threads):
    """The JSON that a benchmark prints."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def ours(size, arguments):
    """Least milliseconds of flash and of math (None where the benchmark has no math)."""
    batch, heads, length, width = size.split("x")
    where = f"batch:{batch}/heads:{heads}/T:{length}/D:{width}/"
    # Repetitions of a fifth each, of which the least counts, as on the other side.
    report = measured(
        [
            str(pathlib.Path(arguments.benchmark).resolve()),
            f"--benchmark_filter=^attention/(flash|math)/{where}",
            f"--benchmark_min_time={arguments.seconds / 5}",
            "--benchmark_repetitions=5",
            "--benchmark_format=json",
        ],
        arguments.threads,
    )
    least = {"flash": None, "math": None}
    for run in report["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        side = run["name"].split("/")[1]
        least[side] = min(run["real_time"], least[side] or float("inf"))
    return least


def peers(size, arguments):
    command = [sys.executable, str(HERE / "torch_attention.py"), size]
    command += ["--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
    report = measured(command, arguments.threads)
    return report["torch"], report["results"][0]["ms"]


def main():
    arguments = parse_arguments()
    print(
        f"{'':>14} {'flash ms':>10} {'GFLOP/s':>8} {'math ms':>10} {'torch ms':>10} "
        f"{'to torch':>8} {'to math':>8}"
    )
    for size in arguments.sizes:
        flash, math, torch_ms = [], [], []
        for _ in range(arguments.rounds):
            least = ours(size, arguments)
            flash.append(least["flash"])
            if least["math"] is not None:
                math.append(least["math"])
            version, ms = peers(size, arguments)
            torch_ms.append(ms)
        batch, heads, length, width = (int(part) for part in size.split("x"))
        flops = 7 * 2 * batch * heads * width * length * (length + 1) / 2
        best = min(flash)
        print(
            f"{size:>14} {best:10.3f} {flops / best / 1e6:8.1f} "
            f"{min(math) if math else float('nan'):10.3f} {min(torch_ms):10.3f} "
            f"{min(torch_ms) / best:8.2f} {min(math) / best if math else float('nan'):8.2f}",
            flush=True,
        )
    print(f"{arguments.threads} threads, PyTorch {version}; FLOPs are those of visible scores")


if __name__ == "__main__":
    main()
