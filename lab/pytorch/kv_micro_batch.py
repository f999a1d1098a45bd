import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attention
from transformers import DynamicCache

# Two micro-batches of two tokens. All scores are 0, and values are the tokens.
for kept in False, True:
    cache = DynamicCache()
    for tokens in [1.0, 2], [4.0, 8]:
        if not kept:
            cache = DynamicCache()
        v = torch.tensor(tokens).reshape(1, 1, 2, 1)
        k, v = cache.update(torch.zeros_like(v), v, 0)
        y = attention(torch.zeros(1, 1, 2, 1), k, v, causal_lower_right(2, k.shape[2]))
    print(f"t2 {y[0, 0, 0, 0]:.6f}  t3 {y[0, 0, 1, 0]:.6f}")
# prints:
# t2 4.000000  t3 6.000000
# t2 2.333333  t3 3.750000
