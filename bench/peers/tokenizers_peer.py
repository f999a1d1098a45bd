"""Compares our tokenizer with Hugging Face tokenizers on one text and one thread, in one run.

Ours trains a vocabulary on the text and writes a tokenizer.json, or both read the one given; then
they take turns. Run it with a Python that has tokenizers, on a machine with nothing else to do. Each
side's figure is its median; the ids must be the same.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", nargs="?", help="a tokenizer.json; none: train one")
    parser.add_argument("--data", help="a text instead of the default corpus")
    parser.add_argument("--vocab", type=int, default=50257, help="tokens to train")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--bench", default="build/release/bin/faultline_tokenizer_bench", help="our binary")
    arguments = parser.parse_args()
    if not pathlib.Path(arguments.bench).is_file():
        parser.error(f"no binary at {arguments.bench}: run ./x build faultline_tokenizer_bench")
    return arguments


def read_text(arguments):
    if arguments.data:
        return pathlib.Path(arguments.data).read_bytes().decode()
    return subprocess.check_output(["bible", "-f", "gen1:1-rev22:21"]).decode()


def ours(arguments, *options):
    data = ["--data", arguments.data] if arguments.data else []
    return json.loads(subprocess.check_output([arguments.bench, *data, *options]))


def checksum(ids):
    """FNV-1a over the ids as little-endian 32-bit numbers, as ours computes it."""
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def main():
    arguments = parse_arguments()
    text = read_text(arguments)
    size = len(text.encode())
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.tokenizer or str(pathlib.Path(folder) / "tokenizer.json")
        if not arguments.tokenizer:
            ours(arguments, "--vocab", str(arguments.vocab), "--save", path, "--rounds", "1")
        peer = tokenizers.Tokenizer.from_file(path)
        rates = {"faultline": [], "tokenizers": []}
        for _ in range(arguments.rounds):
            result = ours(arguments, path, "--rounds", "1")
            rates["faultline"] += result["mb_per_s"]
            start = time.perf_counter()
            encoding = peer.encode(text, add_special_tokens=False)
            rates["tokenizers"].append(size / (time.perf_counter() - start) / 1e6)
    print(f"{size} bytes, {result['tokens']} tokens, vocabulary {result['vocab_size']}, one thread")
    for side, found in rates.items():
        print(f"  {side:<10} {statistics.median(found):7.2f} MB/s  (from {min(found):.2f} to {max(found):.2f})")
    ratio = statistics.median(rates["faultline"]) / statistics.median(rates["tokenizers"])
    same = checksum(encoding.ids) == result["checksum"]
    print(f"  ratio to tokenizers {tokenizers.__version__}: {ratio:.1f}; ids {'the same' if same else 'DIFFER'}")
    return 0 if same and result["round_trip"] else 1


sys.exit(main())
