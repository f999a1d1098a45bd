import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Raw dots of 64 and 0. The model scales its queries, and attention scales by default.
q = torch.ones(1, 1, 1, 64)
k = v = torch.cat([torch.ones(1, 1, 1, 64), torch.zeros(1, 1, 1, 64)], 2)
for y in attention(q / 8, k, v, scale=1.0), attention(q / 8, k, v):
    print(f"weight of the key {y[0, 0, 0, 0]:.6f}")
# prints:
# weight of the key 0.999665
# weight of the key 0.731059
