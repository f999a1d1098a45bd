"""Makes two Hugging Face folders with transformers, each with logits: a GPT-2 and a Llama.

The weights are random and large: at the usual initialisation attention is all but uniform, and a
matrix taken the wrong way round would hardly show. The Llama has grouped keys, a head size that is
not hidden_size / num_attention_heads, and llama3 scaling. README.md lists the files.
"""

import os
import pathlib

import numpy as np
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import safetensors_file

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, WIDTH, LAYERS, SEQ, BATCH = 48, 16, 2, 24, 2


def randomise(model, rng):
    """float32 values; norms near 1, biases small, matrices so that activations keep their size."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        noise = rng.standard_normal(shape)
        if name.endswith("bias"):
            value = 0.1 * noise
        elif len(shape) == 1:
            value = 1 + 0.2 * noise
        elif "wte" in name or "wpe" in name or "embed" in name:
            value = 0.5 * noise
        else:
            inputs = shape[0] if "attn.c_" in name or "mlp.c_" in name else shape[1]
            value = 1.5 / inputs**0.5 * noise
        parameter.data = torch.tensor(value.astype(np.float32))


def make(name, model, rng):
    randomise(model, rng)
    model.save_pretrained(HERE / name)
    tokens = torch.tensor(rng.integers(0, VOCAB, size=(BATCH, SEQ)))
    with torch.no_grad():
        narrow = model.eval()(tokens).logits
        wide = model.double()(tokens).logits
    print(f"{name}: float32 strays {(narrow - wide).abs().max():.1e} of {wide.abs().max():.1f}")
    golden = {"tokens": tokens.numpy().astype(np.int32), "logits": wide.numpy()}
    safetensors_file.write(HERE / name / "logits_golden.safetensors", golden)


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(20260501)
    gpt2 = GPT2Config(
        vocab_size=VOCAB,
        n_positions=32,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    make("hf_gpt2", GPT2LMHeadModel(gpt2), rng)
    llama = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=40,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    )
    make("hf_llama", LlamaForCausalLM(llama), rng)


if __name__ == "__main__":
    main()
