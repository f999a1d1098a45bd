import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Four query heads share two key heads, whose values are 1 and 100.
q, k = torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 1, 1)
v = torch.tensor([1.0, 100.0]).reshape(1, 2, 1, 1)
right = attention(q, k, v, enable_gqa=True)  # what repeat_interleave(2, dim=1) gives
wrong = attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
for y in right, wrong:
    print(f"head 1 {y[0, 1, 0, 0]:.6f}  head 2 {y[0, 2, 0, 0]:.6f}")
# prints:
# head 1 1.000000  head 2 100.000000
# head 1 100.000000  head 2 1.000000
