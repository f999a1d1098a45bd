"""Makes the GPT-2 goldens: one forward and backward pass, ten AdamW steps, and a masked batch.

The model is written out in plain tensor arithmetic, so that it shares no attention kernel and no
mask convention with anything it is compared to. README.md lists the tensors of each file.
"""

import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_file

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, HEADS, WIDTH, VOCAB, SEQ, BATCH = 2, 2, 32, 64, 16, 2
STEPS, LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM = 10, 1e-2, (0.9, 0.999), 1e-8, 0.1, 1.0
IGNORED = -1


def parameter_shapes():
    shapes = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (SEQ, WIDTH)}
    for i in range(LAYERS):
        for norm in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{norm}.weight"] = shapes[f"h.{i}.{norm}.bias"] = (WIDTH,)
        for linear, out_size, in_size in (
            ("attn.qkv", 3 * WIDTH, WIDTH),
            ("attn.proj", WIDTH, WIDTH),
            ("mlp.fc", 4 * WIDTH, WIDTH),
            ("mlp.proj", WIDTH, 4 * WIDTH),
        ):
            shapes[f"h.{i}.{linear}.weight"] = (out_size, in_size)
            shapes[f"h.{i}.{linear}.bias"] = (out_size,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (WIDTH,)
    return shapes


def initial_values(rng):
    """float32 values, so that every precision starts at the same point.

    Far larger than a real initialisation: attention must be far from uniform and no bias or norm
    may be at its neutral value, or a mistake there would hardly show.
    """
    values = {}
    for name, shape in parameter_shapes().items():
        noise = rng.standard_normal(shape)
        if ".ln_" in f".{name}" and name.endswith("weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        else:
            value = noise * (0.5 if name.startswith("w") else 1.5 / math.sqrt(shape[1]))
        values[name] = value.astype(np.float32)
    return values


def causal_mask():
    return torch.ones(SEQ, SEQ, dtype=torch.bool).tril().expand(BATCH, 1, SEQ, SEQ)


def packed_mask(documents, key_valid):
    """Causal, and a query sees only valid keys of its own document."""
    same = documents[:, :, None] == documents[:, None, :]
    return causal_mask() & same[:, None] & key_valid[:, None, None, :]


def attention(x, p, block, allowed):
    """allowed [B, 1, T, T]; a query that may see no key gets zeros."""
    split = lambda t: t.view(BATCH, SEQ, HEADS, WIDTH // HEADS).transpose(1, 2)
    q, k, v = F.linear(x, p[block + "attn.qkv.weight"], p[block + "attn.qkv.bias"]).split(WIDTH, 2)
    scores = split(q) @ split(k).transpose(2, 3) / math.sqrt(WIDTH // HEADS)
    # The lowest finite number, not -inf, keeps a row without keys free of NaN, both ways.
    scores = scores.masked_fill(~allowed, torch.finfo(x.dtype).min)
    weights = scores.softmax(-1) * allowed
    y = (weights @ split(v)).transpose(1, 2).reshape(BATCH, SEQ, WIDTH)
    return F.linear(y, p[block + "attn.proj.weight"], p[block + "attn.proj.bias"])


def forward(p, tokens, allowed):
    """Logits [B, T, V]."""
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], 1e-5)
    x = p["wte.weight"][tokens] + p["wpe.weight"][:SEQ]
    for i in range(LAYERS):
        block = f"h.{i}."
        x = x + attention(norm(x, block + "ln_1"), p, block, allowed)
        hidden = F.linear(
            norm(x, block + "ln_2"), p[block + "mlp.fc.weight"], p[block + "mlp.fc.bias"]
        )
        hidden = F.gelu(hidden, approximate="tanh")
        x = x + F.linear(hidden, p[block + "mlp.proj.weight"], p[block + "mlp.proj.bias"])
    return norm(x, "ln_f") @ p["wte.weight"].T


def mean_loss(logits, labels):
    return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=IGNORED)


def parameters_of(init, dtype):
    return {
        name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in init.items()
    }


def gradients_of(p):
    return {"grad." + name: t.grad.numpy() for name, t in p.items()}


def train(init, dtype, tokens, labels):
    """Ten AdamW steps on one batch: losses, gradient norms before the clip, parameters by step."""
    p = parameters_of(init, dtype)
    groups = [
        {"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False, fused=False)
    losses, norms, states = [], [], {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = mean_loss(forward(p, tokens, causal_mask()), labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), MAX_NORM).item())
        losses.append(loss.item())
        optimizer.step()
        states[step] = {name: t.detach().numpy().copy() for name, t in p.items()}
    return np.array(losses), np.array(norms), states


def next_tokens(stream, valid):
    """Labels of stream [B, T + 1]: the next token where `valid` [B, T], else ignored."""
    return torch.where(valid, stream[:, 1:], torch.tensor(IGNORED))


def int32(tensor):
    return tensor.numpy().astype(np.int32)


def print_distance(step, exact, rounded):
    """How far plain float32 strays, worst parameters first: what a tolerance has to allow."""
    far = {name: np.abs(exact[name] - rounded[name]).max() for name in exact}
    worst = sorted(far, key=far.get, reverse=True)[:5]
    print(f"step {step}, float32 to float64: " + ", ".join(f"{n} {far[n]:.1e}" for n in worst))


def make_plain(init, stream):
    tokens = stream[:, :-1]
    valid = torch.ones(BATCH, SEQ, dtype=torch.bool)
    valid[0, 5] = valid[1, 0] = valid[1, 11] = valid[1, 15] = False
    labels = next_tokens(stream, valid)

    p = parameters_of(init, torch.float64)
    logits = forward(p, tokens, causal_mask())
    loss = mean_loss(logits, labels)
    loss.backward()
    narrow = mean_loss(forward(parameters_of(init, torch.float32), tokens, causal_mask()), labels)
    golden = {"init." + name: value for name, value in init.items()}
    golden.update(gradients_of(p))
    golden.update(
        {
            "tokens": int32(tokens),
            "labels": int32(labels),
            "logits": logits.detach().numpy(),
            "loss": np.float64(loss.item()),
            "f32.loss": np.float32(narrow.item()),
        }
    )
    safetensors_file.write(HERE / "gpt2_golden.safetensors", golden)

    losses, norms, exact = train(init, torch.float64, tokens, labels)
    narrow_losses, narrow_norms, rounded = train(init, torch.float32, tokens, labels)
    golden = {
        "adamw.loss": losses,
        "adamw.norm": norms,
        "f32.adamw.loss": narrow_losses.astype(np.float32),
        "f32.adamw.norm": narrow_norms.astype(np.float32),
    }
    for step in (1, STEPS):
        for name, value in exact[step].items():
            golden[f"step{step}.{name}"] = value.astype(np.float32)
        print_distance(step, exact[step], rounded[step])
    safetensors_file.write(HERE / "gpt2_adamw_golden.safetensors", golden)
    print("losses", losses.round(4), "norms", norms.round(3))
    print(
        "float32 to float64:",
        np.abs(losses - narrow_losses).max(),
        "in the losses,",
        np.abs(norms / narrow_norms - 1).max(),
        "relative in the norms",
    )


def make_masked(init, stream):
    tokens = stream[:, :-1]
    # Row 0 is padded on the left inside its first document, so three queries see no key at all.
    # Row 1 is padded on the right inside its last document, so its last queries still see keys.
    documents = torch.tensor([[0] * 7 + [1] * 5 + [2] * 4, [3] * 1 + [4] * 8 + [5] * 7])
    key_valid = torch.ones(BATCH, SEQ, dtype=torch.bool)
    key_valid[0, :3] = False
    key_valid[1, 12:] = False
    # A label is a valid token of the same document.
    follows = torch.zeros(BATCH, SEQ, dtype=torch.bool)
    follows[:, :-1] = (documents[:, :-1] == documents[:, 1:]) & key_valid[:, 1:]
    labels = next_tokens(stream, follows & key_valid)

    p = parameters_of(init, torch.float64)
    logits = forward(p, tokens, packed_mask(documents, key_valid))
    loss = mean_loss(logits, labels)
    loss.backward()
    golden = gradients_of(p)
    golden.update(
        {
            "tokens": int32(tokens),
            "labels": int32(labels),
            "documents": int32(documents),
            "key_valid": int32(key_valid),
            "logits": (logits * key_valid[:, :, None]).detach().numpy(),
            "loss": np.float64(loss.item()),
        }
    )
    safetensors_file.write(HERE / "gpt2_golden_masked.safetensors", golden)


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(20240501)
    init = initial_values(rng)
    streams = torch.from_numpy(rng.integers(0, VOCAB, (2, BATCH, SEQ + 1)))
    make_plain(init, streams[0])
    make_masked(init, streams[1])


if __name__ == "__main__":
    main()
