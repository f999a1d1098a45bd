"""Makes the Llama goldens: logits, loss and gradients of small random models, and frequencies.

The models are transformers' own in float64; it takes RMSNorm, the angles and the softmax in float32
whatever the dtype. README.md lists the tensors.
"""

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import safetensors_file
from make_gpt2_golden import HERE, IGNORED, int32

VOCAB, WIDTH, MIDDLE, LAYERS, HEADS, HEAD_SIZE, SEQ, BATCH = 24, 16, 20, 2, 4, 8, 20, 2
THETA = 100.0  # so that few positions turn the slow pairs far, too

# As in tests/nn/llama_test.cpp.
MODELS = {
    "mha": {"num_key_value_heads": 4, "max_position_embeddings": 32},
    "gqa_llama3": {
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "rope": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mqa_yarn": {
        "num_key_value_heads": 1,
        "rope": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    # Beyond its positions, where theta grows.
    "gqa_dynamic": {
        "num_key_value_heads": 2,
        "max_position_embeddings": 12,
        "rope": {"rope_type": "dynamic", "factor": 2.0},
    },
    # Row 1 is padded on the left, and its positions begin after the padding.
    "mqa_linear_padded": {
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope": {"rope_type": "linear", "factor": 3.0},
        "padding": 6,
    },
}

# name: theta, head size, length, scaling; the names say whose values they are.
FREQUENCIES = {
    "llama2": (10000.0, 128, 4096, {"rope_type": "default"}),
    "vicuna_16k": (10000.0, 128, 16384, {"rope_type": "linear", "factor": 4.0}),
    "dynamic_within": (10000.0, 64, 2048, {"rope_type": "dynamic", "factor": 2.0}),
    "dynamic_beyond": (10000.0, 64, 6000, {"rope_type": "dynamic", "factor": 2.0}),
    "llama3_1": (
        500000.0,
        128,
        131072,
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "yarn_64k": (
        10000.0,
        128,
        65536,
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
    ),
    "yarn_untruncated": (
        150000.0,
        64,
        131072,
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    ),
    "yarn_mscale": (
        10000.0,
        64,
        163840,
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
    ),
}


def config_of(case):
    case = dict(case)
    case.pop("padding", None)
    rope = {"rope_type": "default", **case.pop("rope", {}), "rope_theta": THETA}
    return LlamaConfig(
        **{"max_position_embeddings": 64, "tie_word_embeddings": False, **case},
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=MIDDLE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        head_dim=HEAD_SIZE,
        rms_norm_eps=1e-5,
        rope_parameters=rope,
        attn_implementation="eager",
    )


def initialize(model, rng):
    """Far larger than a real initialisation: see make_gpt2_golden.py. Values are float32."""
    for name, parameter in model.named_parameters():
        noise = rng.standard_normal(tuple(parameter.shape))
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        elif "embed" in name:
            value = 0.5 * noise
        else:
            value = 1.5 / np.sqrt(parameter.shape[1]) * noise
        parameter.data = torch.tensor(value.astype(np.float32)).double()


def own_name(name):
    return name.removeprefix("model.")


def make_model(name, case, rng):
    model = LlamaForCausalLM(config_of(case)).double()
    initialize(model, rng)
    stream = torch.tensor(rng.integers(0, VOCAB, (BATCH, SEQ + 1)))
    valid = torch.ones(BATCH, SEQ, dtype=torch.int64)
    valid[1, : case.get("padding", 0)] = 0
    positions = (valid.cumsum(1) - 1).clamp(min=0)
    labels = torch.where(valid.bool(), stream[:, 1:], torch.tensor(IGNORED))
    visible = torch.ones(SEQ, SEQ, dtype=torch.bool).tril() & valid.bool()[:, None, None, :]
    hidden = torch.where(visible, 0.0, -1e9).double()  # a row without keys stays finite
    logits = model(stream[:, :-1], attention_mask=hidden, position_ids=positions).logits
    loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=IGNORED)
    loss.backward()
    golden = {
        "tokens": int32(stream[:, :-1]),
        "labels": int32(labels),
        "key_valid": int32(valid),
        "positions": int32(positions),
        "logits": logits.detach().float().numpy() * valid[:, :, None].numpy().astype(np.float32),
        "loss": np.float64(loss.item()),
    }
    for parameter_name, parameter in model.named_parameters():
        golden["init." + own_name(parameter_name)] = parameter.detach().float().numpy()
        golden["grad." + own_name(parameter_name)] = parameter.grad.float().numpy()
    print(f"{name}: loss {loss.item():.4f}, largest logit {logits.abs().max().item():.2f}")
    return {f"{name}.{key}": value for key, value in golden.items()}


def make_frequencies(theta, head_size, length, scaling):
    positions = 2048 if scaling["rope_type"] == "dynamic" else length
    config = LlamaConfig(
        head_dim=head_size,
        max_position_embeddings=positions,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    if scaling["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, seq_len=length)


def main():
    rng = np.random.default_rng(20240917)
    golden = {}
    for name, case in MODELS.items():
        golden.update(make_model(name, case, rng))
    for name, case in FREQUENCIES.items():
        frequencies, magnitude = make_frequencies(*case)
        golden[f"{name}.frequencies"] = frequencies.float().numpy()
        golden[f"{name}.magnitude"] = np.float64(magnitude)
    safetensors_file.write(HERE / "llama_golden.safetensors", golden)


if __name__ == "__main__":
    main()
