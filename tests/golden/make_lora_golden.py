#!/usr/bin/env python3
"""Writes lora_golden.safetensors and peft/*: adapters as PEFT saves them, over the model of
gpt2_golden.safetensors, and the logits that they give there in float64."""
import json
import pathlib
import shutil

import numpy as np
import safetensors_file
import torch
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).resolve().parent
RENAMED = {"attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"}
ADAPTERS = {
    "list": dict(r=4, lora_alpha=8, target_modules=["c_attn"]),
    "regex": dict(r=3, lora_alpha=5, target_modules=r".*\.(c_fc|attn\.c_proj)"),
    "all_linear": dict(r=2, lora_alpha=7, target_modules="all-linear"),
    "patterns": dict(r=2, lora_alpha=4, target_modules=["c_attn", "c_fc"],
                     rank_pattern={"c_attn": 5, r"h\.1\.mlp\.c_fc": 1}, alpha_pattern={r"h\.0\..*": 9}),
    "rslora": dict(r=4, lora_alpha=8, target_modules=["c_proj"], use_rslora=True),
}


def base(golden):
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = GPT2LMHeadModel(config).to(torch.float64).eval()
    state = model.state_dict()
    for name, value in golden.items():
        if not name.startswith("init."):
            continue
        ours = name.removeprefix("init.")
        theirs = ours
        for a, b in RENAMED.items():
            theirs = theirs.replace(a + ".", b + ".")
        value = torch.from_numpy(value).to(torch.float64)
        if ours.endswith("weight") and theirs != ours:  # Conv1D stores [in, out]
            value = value.T
        state["transformer." + theirs].copy_(value)
    return model


def main():
    torch.set_num_threads(1)
    golden = load_file(HERE / "gpt2_golden.safetensors")
    tokens = torch.from_numpy(golden["tokens"][:1].astype(np.int64))
    out = {}
    for number, (name, settings) in enumerate(ADAPTERS.items()):
        torch.manual_seed(number)
        model = base(golden)
        with torch.no_grad():
            before = model(tokens).logits[0].numpy()
        assert np.abs(before - golden["logits"][0]).max() < 1e-10, "this is not the golden's model"
        tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=True, **settings)).eval()
        for key, parameter in tuned.named_parameters():
            if "lora_B" in key:  # zero at the start: an adapter that was trained is not
                parameter.data.normal_(0, 0.1)
            if "lora_" in key:  # what the file holds
                parameter.data = parameter.data.to(torch.float32).to(torch.float64)
        with torch.no_grad():
            out["logits." + name] = tuned(tokens).logits[0].numpy()
        print(name, "moves the logits by", np.abs(out["logits." + name] - before).max())
        place = HERE / "peft" / name
        for parameter in tuned.parameters():
            parameter.data = parameter.data.to(torch.float32)
        tuned.save_pretrained(place)
        (place / "README.md").unlink()
        path = place / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()), indent=2, sort_keys=True) + "\n")
    safetensors_file.write(HERE / "lora_golden.safetensors", out)


if __name__ == "__main__":
    shutil.rmtree(HERE / "peft", ignore_errors=True)
    main()
