"""Trains the `char` preset in PyTorch: the loss that `faultline train char` has to reach.

The corpus is the King James Bible as `bible -f 'gen1:1-rev22:21'` prints it, as bytes; a document
is a chapter and ends with byte 0. The last tenth is held out. Windows are plain causal: unlike
faultline, nothing is masked where a chapter ends inside a window (about one window in thirty).
Prints one JSON line: the validation loss in nats per byte and the seconds of training.
"""

import argparse
import json
import math
import subprocess
import sys
import time

import torch

import torch_gpt2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.99)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="a text file in place of the output of `bible`")
    return parser.parse_args()


def read_corpus(path):
    if path:
        with open(path, "rb") as file:
            return file.read()
    return subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True
    ).stdout


def tokens_of(text):
    """Bytes with a 0 after each chapter; a verse's line starts with book, chapter and ':'."""
    parts, chapter = [], None
    for line in text.splitlines(keepends=True):
        mark = line.split(b":", 1)[0]
        if chapter is not None and mark != chapter:
            parts.append(b"\0")
        parts.append(line)
        chapter = mark
    return torch.frombuffer(bytearray(b"".join(parts) + b"\0"), dtype=torch.uint8).long()


def learning_rate(step, arguments):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < arguments.warmup:
        return arguments.lr * (step + 1) / arguments.warmup
    done = (step - arguments.warmup) / max(1, arguments.steps - arguments.warmup)
    return arguments.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def windows_of(tokens, seq):
    """[n, seq + 1]: each window's last token is the next one's first, so each is a label once."""
    return tokens.unfold(0, seq + 1, seq)


def validation_loss(model, windows):
    """Mean nats per byte over every held-out window."""
    total = 0.0
    with torch.no_grad():
        for chunk in windows.split(64):
            total += model(chunk[:, :-1], chunk[:, 1:]).item() * len(chunk)
    return total / len(windows)


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    shape = torch_gpt2.SHAPES["char"]

    tokens = tokens_of(read_corpus(arguments.data))
    border = len(tokens) * 9 // 10
    training = windows_of(tokens[:border], shape.seq)
    held_out = windows_of(tokens[border:], shape.seq)

    model = torch_gpt2.Gpt2(shape)
    betas = (arguments.beta1, arguments.beta2)
    optimizer = torch_gpt2.adamw(model, arguments.lr, betas, arguments.weight_decay)
    order = torch.randperm(len(training))
    start = time.perf_counter()
    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments)
        at = torch.arange(step * shape.batch, (step + 1) * shape.batch) % len(order)
        batch = training[order[at]]
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            seconds = time.perf_counter() - start
            print(
                f"step {step + 1} loss {loss.item():.4f} {seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "model": "char",
                "steps": arguments.steps,
                "threads": arguments.threads,
                "lr": arguments.lr,
                "betas": betas,
                "weight_decay": arguments.weight_decay,
                "seconds": round(seconds, 1),
                "train_loss": loss.item(),
                "validation_loss": validation_loss(model, held_out),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
