import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Two texts behind each other, as values with the ends of their keys. All scores are 0.
v = torch.tensor([1.0, 2, 4, 100, 200, 400]).reshape(1, 1, 6, 1)
for ends in [0, 3, 6], [0, 4, 6]:
    last = []
    for i in range(2):
        own = v[:, :, ends[i]:ends[i + 1]]
        last.append(attention(torch.zeros(1, 1, 1, 1), torch.zeros_like(own), own).item())
    print(f"last of text 0 {last[0]:.4f}  last of text 1 {last[1]:.4f}")
# prints:
# last of text 0 2.3333  last of text 1 233.3333
# last of text 0 26.7500  last of text 1 300.0000
