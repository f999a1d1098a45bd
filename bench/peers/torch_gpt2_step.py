"""Times a training step in PyTorch on the CPU: forward, backward and fused AdamW.

The models and batches are those of `faultline bench`.
Prints one JSON line with the median over --steps, after two warm-up steps.
"""

import argparse
import dataclasses
import json
import statistics
import time

import torch

import torch_gpt2

WARM_UP = 2
# Enough steps for a steady median, in some seconds each.
STEPS = {"tiny": 60, "char": 20, "gpt2": 8}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=torch_gpt2.SHAPES)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seq", type=int)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: autocast")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    return parser.parse_args()


def shape_of(arguments):
    """The preset, with the batch and sequence asked for."""
    asked = {key: getattr(arguments, key) for key in ("batch", "seq")}
    shape = dataclasses.replace(
        torch_gpt2.SHAPES[arguments.model], **{key: value for key, value in asked.items() if value}
    )
    return dataclasses.replace(shape, positions=max(shape.positions, shape.seq))


def main():
    arguments = parse_arguments()
    shape = shape_of(arguments)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = torch_gpt2.Gpt2(shape)
    optimizer = torch_gpt2.adamw(model, lr=1e-4)
    loss_of = torch.compile(model) if arguments.compile else model

    seconds = []
    for _ in range(WARM_UP + (arguments.steps or STEPS[arguments.model])):
        stream = torch.randint(0, shape.vocab, (shape.batch, shape.seq + 1))
        tokens, labels = stream[:, :-1].contiguous(), stream[:, 1:].contiguous()
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.dtype == "bf16"):
            loss = loss_of(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)

    step = statistics.median(seconds[WARM_UP:])
    print(
        json.dumps(
            {
                "model": arguments.model,
                "batch": shape.batch,
                "seq": shape.seq,
                "dtype": arguments.dtype,
                "threads": arguments.threads,
                "compile": arguments.compile,
                "ms_per_step": 1e3 * step,
                "tokens_per_s": shape.batch * shape.seq / step,
                "loss": loss.item(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
