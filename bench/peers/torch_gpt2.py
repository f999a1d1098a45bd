"""GPT-2 in PyTorch, as plainly as its users write it: what faultline is measured against.

Pre-LN blocks, learned positions, tanh GELU, biases, a head tied to the token embedding.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """What one model and one batch look like."""

    layers: int
    heads: int
    width: int
    vocab: int
    positions: int
    batch: int
    seq: int


# The presets of `faultline bench` and `faultline train`.
SHAPES = {
    "tiny": Shape(layers=2, heads=2, width=32, vocab=256, positions=32, batch=4, seq=32),
    "char": Shape(layers=4, heads=4, width=128, vocab=256, positions=128, batch=16, seq=128),
    "gpt2": Shape(layers=12, heads=12, width=768, vocab=50304, positions=1024, batch=4, seq=64),
}


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, seq, width = x.shape
        qkv = self.qkv(x).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_proj(y.transpose(1, 2).reshape(batch, seq, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.wte = nn.Embedding(shape.vocab, shape.width)
        self.wpe = nn.Embedding(shape.positions, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                # What is added to the residual stream shrinks with the number of additions.
                shrink = math.sqrt(2 * shape.layers) if name.endswith("proj.weight") else 1
                nn.init.normal_(parameter, std=0.02 / shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, labels):
        """Mean loss in nats of labels [batch, seq] that follow tokens [batch, seq]."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def adamw(model, lr, betas=(0.9, 0.999), weight_decay=0.1):
    """Fused AdamW that decays matrices and embeddings, never biases and norms."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    free = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)
