"""Times tokens that transformers' GPT-2 generates one by one with its cache, on the CPU.

The model, prompt and timing are those of `faultline bench gpt2 --decode`: random weights, 16 tokens
of prompt, greedy, the median time between two tokens after two to warm up. Prints one JSON line.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

PROMPT = 16
WARM_UP = 2


class Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when each token comes; the first call brings the prompt."""

    def __init__(self):
        self.at = []

    def put(self, value):
        self.at.append(time.perf_counter())

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="tokens to time")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50304)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = 1 + WARM_UP + arguments.steps
    clock = Clock()
    prompt = torch.ones(1, PROMPT, dtype=torch.long)
    with torch.inference_mode():
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
            streamer=clock,
        )
    at = clock.at[1:]
    assert len(at) == tokens, f"{len(at)} tokens came, {tokens} were asked for"
    times = [1000 * (b - a) for a, b in zip(at[WARM_UP:], at[WARM_UP + 1 :])]
    ms = statistics.median(times)
    result = {
        "model": "gpt2",
        "tokens": arguments.steps,
        "ms_per_token": ms,
        "tokens_per_s": 1000 / ms,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps(result))


main()
