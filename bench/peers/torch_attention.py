"""Times PyTorch's scaled_dot_product_attention on the CPU, causal, forward and backward, and prints
JSON: one object a size, {"batch", "heads", "T", "D", "ms"}."""

import argparse
import json
import time

import torch


def sizes(text):
    numbers = [int(part) for part in text.split("x")]
    if len(numbers) != 4 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected BATCHxHEADSxTxD, got {text!r}")
    return numbers


def step(leaves, dy):
    for leaf in leaves:
        leaf.grad = None
    y = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    y.backward(dy)


def least_ms(shape, seconds):
    """The least mean of five repetitions, as the benchmark of our side takes it."""
    torch.manual_seed(1)
    leaves = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    dy = torch.randn(shape)
    step(leaves, dy)
    means = []
    for _ in range(5):
        steps = 0
        begin = time.perf_counter()
        while steps == 0 or time.perf_counter() - begin < seconds / 5:
            step(leaves, dy)
            steps += 1
        means.append((time.perf_counter() - begin) / steps)
    return 1e3 * min(means)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", metavar="BATCHxHEADSxTxD", nargs="+", type=sizes)
    parser.add_argument("--seconds", type=float, default=1, help="time for each size")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for batch, heads, length, width in arguments.sizes:
        ms = least_ms((batch, heads, length, width), arguments.seconds)
        results.append({"batch": batch, "heads": heads, "T": length, "D": width, "ms": ms})
    print(json.dumps({"torch": torch.__version__, "results": results}))


if __name__ == "__main__":
    main()
