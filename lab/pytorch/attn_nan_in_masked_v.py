import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Two tokens and two slots that nobody wrote. All scores are 0.
q = k = torch.zeros(1, 1, 4, 1)
v = torch.tensor([1.0, 2, torch.nan, torch.nan]).reshape(1, 1, 4, 1)
visible = torch.ones(4, 4, dtype=torch.bool).tril() & torch.tensor([True, True, False, False])
for values in v.nan_to_num(0), v:
    print(f"last row {attention(q, k, values, visible)[0, 0, 3, 0]:.6f}")
# prints:
# last row 1.500000
# last row nan
