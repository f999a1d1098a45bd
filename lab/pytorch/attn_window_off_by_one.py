import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# A window of 4 over eight values 2^key. All scores are 0.
q = k = torch.zeros(1, 1, 8, 1)
v = (2.0 ** torch.arange(8)).reshape(1, 1, 8, 1)
distance = torch.arange(8)[:, None] - torch.arange(8)
for left in 3, 4:  # keys to the left of the query, which is in the window itself
    y = attention(q, k, v, (distance >= 0) & (distance <= left))
    print(f"row 7 {y[0, 0, 7, 0]:.4f}")
# prints:
# row 7 60.0000
# row 7 49.6000
