"""The models that the comparison makes: small, random, of every kind that Faultline reads."""
import dataclasses

import torch
import transformers


@dataclasses.dataclass
class Model:
    name: str
    config: object
    dtype: torch.dtype = torch.float32


def gpt2(**changes):
    values = dict(vocab_size=256, n_positions=128, n_embd=48, n_layer=3, n_head=4,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2Config(**{**values, **changes})


def llama(**changes):
    values = dict(vocab_size=256, max_position_embeddings=128, hidden_size=48,
                  intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
                  num_key_value_heads=2, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0)
    return transformers.LlamaConfig(**{**values, **changes})


def rope(kind, **values):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


def models():
    half = [Model("gpt2, bf16 weights", gpt2(), torch.bfloat16),
            Model("llama, f16 weights", llama(), torch.float16)]
    return [
        Model("gpt2", gpt2()),
        Model("gpt2, one head", gpt2(n_head=1)),
        Model("gpt2, erf GELU", gpt2(activation_function="gelu")),
        Model("llama, grouped heads", llama()),
        Model("llama, all heads", llama(num_key_value_heads=6)),
        Model("llama, one key head", llama(num_key_value_heads=1)),
        Model("llama, wide heads", llama(head_dim=16)),
        Model("llama, tied", llama(tie_word_embeddings=True)),
        Model("llama, biases", llama(attention_bias=True, mlp_bias=True)),
        Model("llama, linear", llama(**rope("linear", factor=2.0))),
        Model("llama, dynamic, within", llama(**rope("dynamic", factor=2.0))),
        Model("llama, yarn", llama(**rope("yarn", factor=4.0,
                                          original_max_position_embeddings=32))),
        Model("llama, llama3", llama(**rope("llama3", factor=8.0, low_freq_factor=1.0,
                                            high_freq_factor=4.0,
                                            original_max_position_embeddings=64))),
        *half,
    ]


def build(model, seed):
    """A random model in which nothing is zero or one, so that a part left out shows."""
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(model.config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(1.0 if "norm.weight" in name or "ln_" in name and name.endswith("weight")
                              else 0.0, 0.1)
    return made.to(model.dtype).eval()
