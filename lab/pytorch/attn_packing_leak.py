import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# A row of two documents of two tokens. All scores are 0.
q = k = torch.zeros(1, 1, 4, 1)
document = torch.tensor([0, 0, 1, 1])
own = torch.ones(4, 4, dtype=torch.bool).tril() & (document[:, None] == document)
for mask in {"attn_mask": own}, {"is_causal": True}:
    y, moved = (attention(q, k, torch.tensor(v).reshape(1, 1, 4, 1), **mask)[0, 0, :, 0]
                for v in ([1.0, 2, 4, 8], [101.0, 102, 4, 8]))
    print(f"t2 {y[2]:.6f}  t3 {y[3]:.6f}  t3 moved by {moved[3] - y[3]:.6f}")
# prints:
# t2 4.000000  t3 6.000000  t3 moved by 0.000000
# t2 2.333333  t3 3.750000  t3 moved by 50.000000
