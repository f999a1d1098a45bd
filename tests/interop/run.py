#!/usr/bin/env python3
"""Compares Faultline with PyTorch, transformers, PEFT and tokenizers themselves.

`./x interop` makes a virtual environment with their current releases and runs this in it. Everything
is made here at random; nothing is loaded from a hub. The PyTorch code of the pages of docs/faults/
runs here too. Exit 0 only if every row agrees.
"""
import argparse
import contextlib
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import peft
import safetensors.torch
import tokenizers
import torch
import transformers

import blocks
import models
import texts
from table import Table

# Both sides compute in f32 and add in other orders: a logit is a sum over some hundred products in
# each of a few layers, so they part by some 1e-6 of the largest. A part left out changes 1e-2.
BOUND = 3e-5


class Faultline:
    def __init__(self, binary, worker):
        self.binary, self.worker = binary, worker

    def tokenizers(self, given, corpus, out):
        """Saves each tokenizer of `given` anew, and what it learns from the texts `corpus`, in `out`."""
        done = subprocess.run([self.worker, "--gtest_filter=TokenizerWorker.*"], text=True, timeout=600,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "TOKENIZERS": str(given), "TOKENIZER_TEXTS": str(corpus),
                                   "TOKENIZERS_OUT": str(out)})
        if done.returncode:
            sys.exit(f"interop: {self.worker}: {done.stdout.strip()}")

    def run(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True,
                              timeout=600)
        if done.returncode:
            sys.exit(f"interop: faultline {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def logits(self, folder, ids, *arguments):
        with tempfile.TemporaryDirectory() as scratch:
            given, made = f"{scratch}/ids.safetensors", f"{scratch}/logits.safetensors"
            safetensors.torch.save_file({"ids": ids.to(torch.int32)}, given)
            self.run("logits", folder, "--ids", given, "--out", made, *arguments)
            out = safetensors.torch.load_file(made)
        return out["logits"], out["loss"].item()


def distance(ours, theirs):
    """The largest difference, relative to the largest value; NaN where either has one."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def byte_tokenizer():
    """Token b is the byte b, as GPT-2 spells bytes."""
    spelling = {}
    extra = 256
    for byte in range(256):
        shown = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        spelling[chr(byte if shown else extra)] = byte
        extra += not shown
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=spelling, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def save(made, folder):
    made.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def opened(folder):
    """The folder in transformers, computing in f32 whatever dtype its weights have. (A model that is
    cast instead of opened keeps rotary frequencies that were rounded to 16 bits.)"""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference(made, ids):
    with torch.no_grad():
        out = made(input_ids=ids, labels=ids)
    return out.logits, out.loss.item()


# Prompts, of which the first is taken that a model does not end early.
PROMPTS = ["In the beginning God created", "And there was light", "Blessed are the", "q", "0 1 2"]


def continued(made, prompt):
    given = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        ids = made.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=64,
                            do_sample=False, use_cache=True, pad_token_id=0)
    return ids[0, given.shape[1]:].tolist()


def compare_logits(table, faultline, scratch):
    ids = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(7))
    for number, model in enumerate(models.models()):
        made = models.build(model, seed=number)
        folder = scratch / f"model{number}"
        save(made, folder)
        made = opened(folder)
        theirs, their_loss = reference(made, ids)
        ours, our_loss = faultline.logits(folder, ids)
        table.row(f"{model.name}: logits", distance(ours, theirs), BOUND)
        table.row(f"{model.name}: loss", abs(our_loss - their_loss), BOUND * their_loss)
        prompt = next((p for p in PROMPTS if len(continued(made, p)) == 64), PROMPTS[0])
        # A folder that does not say do_sample is continued with the likeliest token by both.
        answer = json.loads(faultline.run("generate", folder, "--prompt", prompt, "--tokens", 64,
                                          "--json", "-"))
        table.equal(f"{model.name}: greedy tokens with cache", answer["tokens"],
                    continued(made, prompt))


def compare_dynamic(table, faultline, scratch):
    """Beyond the positions of its training, where the frequencies follow the length."""
    model = models.Model("", models.llama(max_position_embeddings=32, **models.rope("dynamic", factor=2.0)))
    save(models.build(model, seed=51), scratch / "dynamic")
    ids = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(7))
    theirs = reference(opened(scratch / "dynamic"), ids)[0]
    table.row("llama, dynamic, beyond 32 positions: logits",
              distance(faultline.logits(scratch / "dynamic", ids)[0], theirs), BOUND)


def compare_sharded(table, faultline, scratch):
    made = models.build(models.Model("llama", models.llama()), seed=50)
    save_folder = scratch / "sharded"
    made.save_pretrained(save_folder, max_shard_size="60KB")
    byte_tokenizer().save(str(save_folder / "tokenizer.json"))
    shards = len(list(save_folder.glob("model-*.safetensors")))
    ids = torch.arange(40).reshape(1, 40)
    table.row(f"llama in {shards} shards: logits",
              distance(faultline.logits(save_folder, ids)[0], reference(made, ids)[0]), BOUND)


def compare_tokens(table, faultline, scratch):
    for rule, made in texts.trained_tokenizers():
        folder = scratch / f"tokenizer-{rule}"
        folder.mkdir()
        made.save(str(folder / "tokenizer.json"))
        for name, text in texts.hard_texts():
            file = scratch / "text"
            file.write_bytes(text.encode())
            ours = json.loads(faultline.run("tokenize", folder, file, "--json", "-"))["tokens"]
            table.equal(f"{rule}: ids of {name}", ours, made.encode(text).ids)
        file.write_bytes(texts.INVALID)
        ours = json.loads(faultline.run("tokenize", folder, file, "--json", "-"))
        table.equal(f"{rule}: bytes back from invalid UTF-8", bytes.fromhex(ours["bytes"]),
                    texts.INVALID)


def split_alike(table, name, folder, theirs):
    """A tokenizer.json written here, in tokenizers and in transformers, against `theirs` on all texts."""
    complaints = []
    with heard(complaints):
        opened_by = {"tokenizers": tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")),
                     "AutoTokenizer": transformers.AutoTokenizer.from_pretrained(folder)}
    table.none(f"{name}: what transformers says", complaints)
    for by, ours in opened_by.items():
        ids = lambda text: ours.encode(text).ids if by == "tokenizers" else ours(text).input_ids
        wrong = [text for text, content in texts.hard_texts() if ids(content) != theirs(content)]
        table.none(f"{name}: texts that {by} splits otherwise", wrong)


def compare_own_tokenizers(table, faultline, scratch):
    """Tokenizers that were loaded and saved, and learned, here."""
    given, corpus, out = scratch / "given", scratch / "corpus-texts", scratch / "own-tokenizers"
    corpus.mkdir()
    for number, text in enumerate(texts.corpus()):
        (corpus / f"{number:02}").write_bytes(text.encode())
    made = dict(texts.trained_tokenizers())
    for rule, tokenizer in made.items():
        (given / rule).mkdir(parents=True)
        tokenizer.save(str(given / rule / "tokenizer.json"))
    faultline.tokenizers(given, corpus, out)
    for rule, tokenizer in made.items():
        encoded = lambda text: tokenizer.encode(text).ids
        saved = (out / "saved" / rule / "tokenizer.json").read_bytes()
        table.equal(f"{rule}, saved here: bytes of the file", saved,
                    (given / rule / "tokenizer.json").read_bytes())
        split_alike(table, f"{rule}, saved here", out / "saved" / rule, encoded)
        learned = json.loads((out / "learned" / rule / "tokenizer.json").read_text(encoding="utf-8"))
        table.equal(f"{rule}, learned here: merges", learned["model"]["merges"],
                    json.loads(tokenizer.to_str())["model"]["merges"])
        split_alike(table, f"{rule}, learned here", out / "learned" / rule, encoded)


def adapters(config_kind):
    attention = ["c_attn"] if config_kind == "gpt2" else ["q_proj", "v_proj"]
    yield "two targets", dict(target_modules=attention, r=4, lora_alpha=8)
    yield "all linear layers", dict(target_modules="all-linear", r=8, lora_alpha=16)
    yield "rsLoRA, patterns", dict(target_modules="all-linear", r=4, lora_alpha=16, use_rslora=True,
                                   rank_pattern={attention[0]: 2}, alpha_pattern={attention[0]: 3})


def compare_adapters(table, faultline, scratch):
    ids = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(8))
    for kind, config in (("gpt2", models.gpt2()), ("llama", models.llama())):
        base = scratch / f"base-{kind}"
        save(models.build(models.Model(kind, config), seed=90), base)
        for name, values in adapters(kind):
            theirs = peft.get_peft_model(
                opened(base), peft.LoraConfig(task_type="CAUSAL_LM",
                                              fan_in_fan_out=kind == "gpt2", **values))
            torch.manual_seed(91)
            for parameter_name, parameter in theirs.named_parameters():
                if "lora_" in parameter_name:
                    parameter.data.normal_(0, 0.1)
            folder = scratch / f"adapter-{kind}-{name.replace(' ', '-')}"
            theirs.eval().save_pretrained(folder)
            expected = reference(theirs, ids)[0]
            table.row(f"{kind}, PEFT adapter here, {name}: logits",
                      distance(faultline.logits(base, ids, "--adapter", folder)[0], expected), BOUND)
            merged = scratch / f"merged-{kind}-{name.replace(' ', '-')}"
            faultline.run("merge", base, "--adapter", folder, "--out", merged)
            table.row(f"{kind}, merged here, in transformers, {name}: logits",
                      distance(reference(opened(merged), ids)[0], expected), BOUND)


def compare_training(table, faultline, scratch):
    """An adapter trained here, opened by PEFT."""
    ids = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(9))
    text = scratch / "corpus"
    text.write_text("And God said, Let there be light: and there was light.\n" * 400)
    for kind in ("gpt2", "llama"):
        base, run = scratch / f"base-{kind}", scratch / f"run-{kind}"
        faultline.run("train", base, "--lora", "r=4,alpha=8", "--steps", 3, "--lr", "0.01",
                      "--data", text, "--out", run)
        theirs = peft.PeftModel.from_pretrained(opened(base), str(run / "adapter"))
        expected = reference(theirs.eval(), ids)[0]
        plain = reference(opened(base), ids)[0]
        table.row(f"{kind}, adapter trained here, in PEFT: logits",
                  distance(faultline.logits(base, ids, "--adapter", run / "adapter")[0], expected),
                  BOUND)
        if distance(expected, plain) < 10 * BOUND:
            sys.exit(f"interop: the {kind} adapter changed nothing, so the row above shows nothing")


def compare_attention(table, faultline, scratch):
    """PyTorch's own attention, judged by its answers to the probes."""
    for dtype in ("f32", "f16", "bf16"):
        given, made = scratch / "probes.safetensors", scratch / "answers.safetensors"
        faultline.run("check-attention", "--emit", given, "--dtype", dtype)
        probes = safetensors.torch.load_file(given)
        names = [key[:-2] for key in probes if key.endswith(".q") and key != "softcap.q"]
        safetensors.torch.save_file({
            name: torch.nn.functional.scaled_dot_product_attention(
                probes[name + ".q"], probes[name + ".k"], probes[name + ".v"],
                probes[name + ".mask"], enable_gqa=True) for name in names}, made)
        done = subprocess.run([faultline.binary, "check-attention", "--judge", made, "--json", "-"],
                              capture_output=True, text=True, timeout=60)
        verdict = json.loads(done.stdout)
        wrong = [row["probe"] for row in verdict["probes"] if row["answered"] and not row["right"]]
        # A weight of 0 does not keep NaN out: pytorch issue 101967.
        table.equal(f"PyTorch's attention, {dtype}: wrong answers", wrong,
                    ["nan-in-padding", "nan-in-future", "nan-outside-window", "nan-in-other-document"])
        table.equal(f"PyTorch's attention, {dtype}: named",
                    [mistake["cause"] for mistake in verdict["mistakes"]], ["attn.nan-in-masked-v"])


class Complaints(logging.Handler):
    def __init__(self, said):
        super().__init__(logging.WARNING)
        self.said = said

    def emit(self, record):
        self.said.append(record.getMessage().splitlines()[0])


@contextlib.contextmanager
def heard(said):
    """Adds to `said` what transformers logs, and what anybody warns of."""
    complaints, logger = Complaints(said), logging.getLogger("transformers")
    logger.addHandler(complaints)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
    finally:
        logger.removeHandler(complaints)
    said += [f"{w.category.__name__}: {str(w.message).splitlines()[0]}" for w in warned]


def opens_silently(table, name, folder):
    """The folder in transformers, which must not complain."""
    said = []
    with heard(said):
        theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True)
    table.none(f"{name}: what transformers says",
               said + [f"{key}: {value}" for key, value in info.items() if value])
    return theirs.eval()


def written_models():
    """What is opened here and written again: the variants that a folder spells otherwise."""
    yield from models.models()
    yield models.Model("llama, tied, biases", models.llama(tie_word_embeddings=True, attention_bias=True))


def compare_written(table, faultline, scratch):
    """Runs written here as folders."""
    ids = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(10))
    for preset in ("tiny", "llama-tiny"):
        run, folder = scratch / f"run-{preset}", scratch / f"hf-{preset}"
        faultline.run("train", preset, "--steps", 3, "--out", run)
        faultline.run("convert", run, folder, "--to", "hf")
        expected = reference(opens_silently(table, f"{preset} written here", folder), ids)[0]
        table.row(f"{preset} written here: logits", distance(faultline.logits(run, ids)[0], expected),
                  BOUND)
        split_alike(table, f"{preset}, its tokenizer of bytes", folder, lambda text: list(text.encode()))
        back = scratch / f"back-{preset}"
        faultline.run("convert", folder, back, "--to", "run")
        table.row(f"{preset} there and back: logits",
                  distance(faultline.logits(back, ids)[0], faultline.logits(run, ids)[0]), 0)


def compare_rewritten(table, faultline, scratch):
    """Folders of every kind, written again here, in one file and in shards. The weights keep their
    bits, so the logits of transformers do."""
    ids = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(11))
    for number, model in enumerate(written_models()):
        given = scratch / f"given{number}"
        save(models.build(model, seed=number), given)
        expected = reference(opened(given), ids)[0]
        for name, options in (("written again", []), ("in shards", ["--shard-bytes", 60000])):
            folder = scratch / f"again{number}-{len(options)}"
            faultline.run("convert", given, folder, "--to", "hf", *options)
            what = f"{model.name}, {name}"
            if options:
                shards = len(list(folder.glob("model-*.safetensors")))
                table.none(f"{what}: fewer than 2 shards", [] if shards > 1 else [str(shards)])
            found = reference(opens_silently(table, what, folder), ids)[0]
            table.row(f"{what}: logits", distance(found, expected), 0)


def compare_blocks(table, faultline, scratch):
    """The PyTorch code of the pages of the faults."""
    blocks.compare(table, blocks.all_pages())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--worker", help="the program test_data; otherwise that beside the binary")
    asked = parser.parse_args()
    worker = asked.worker or str(pathlib.Path(asked.binary).parent / "test_data")
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of PEFT about transformers
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"peft {peft.__version__}, tokenizers {tokenizers.__version__}")
    table, faultline = Table(), Faultline(asked.binary, worker)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for compare in (compare_logits, compare_dynamic, compare_sharded, compare_tokens,
                        compare_own_tokenizers, compare_adapters, compare_training, compare_written,
                        compare_rewritten, compare_attention, compare_blocks):
            compare(table, faultline, scratch)
    if table.failed:
        sys.exit(f"interop: {table.failed} rows failed")
    print("interop: every row agrees")


if __name__ == "__main__":
    main()
