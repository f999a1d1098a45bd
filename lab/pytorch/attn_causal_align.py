import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attention

# Two queries behind three cached keys. All scores are 0, so a row is the mean of what it sees.
q, k = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 5, 1)
v = torch.tensor([1.0, 2, 4, 8, 16]).reshape(1, 1, 5, 1)
for y in attention(q, k, v, causal_lower_right(2, 5)), attention(q, k, v, is_causal=True):
    print(f"q3 {y[0, 0, 0, 0]:.6f}  q4 {y[0, 0, 1, 0]:.6f}")
# prints:
# q3 3.750000  q4 6.200000
# q3 1.000000  q4 1.500000
