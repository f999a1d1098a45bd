import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Scores of 100 and 98 under a soft-cap of 50, which the call has no argument for.
scores = torch.tensor([100.0, 98])
capped = 50 * torch.tanh(scores / 50)
print(f"weight of 100 beside 98 {capped.softmax(0)[0]:.6f}")
k, v = scores.reshape(1, 1, 2, 1), torch.tensor([1.0, 0]).reshape(1, 1, 2, 1)
print(f"weight of 100 beside 98 {attention(torch.ones(1, 1, 1, 1), k, v, scale=1.0).item():.6f}")

# Eight tokens with the values 1, 2, 4, ..., and a window of four that nobody hands on.
v = (2.0 ** torch.arange(8)).reshape(1, 1, 8, 1)
window = torch.ones(8, 8, dtype=torch.bool).tril() & torch.ones(8, 8, dtype=torch.bool).triu(-3)
for mask in dict(attn_mask=window), dict(is_causal=True):
    y = attention(torch.zeros_like(v), torch.zeros_like(v), v, **mask)
    print(f"last row of the window {y[0, 0, 7, 0]:.6f}")
# prints:
# weight of 100 beside 98 0.536655
# weight of 100 beside 98 0.880797
# last row of the window 60.000000
# last row of the window 31.875000
