import torch
from torch.nn.functional import scaled_dot_product_attention as attention

def show(v, queries=1, **mask):  # all scores are 0; the last query stands at token 3 or 4
    v = torch.tensor(v).reshape(1, 1, -1, 1)
    y = attention(torch.zeros(1, 1, queries, 1), torch.zeros_like(v), v, **mask).flatten()
    first = (4 if v[0, 0].max() == 16 else 3) - queries + 1
    print("  ".join(f"q{first + i} {value:.6f}" for i, value in enumerate(y.tolist())))

five, slots = [1.0, 2, 4, 8, 16], [1.0, 2, 4, 8, 16, 0, 0, 0]
show(five, 2, attn_mask=torch.ones(2, 5, dtype=torch.bool).tril(3))
show(five, 2, is_causal=True)  # two new queries over three cached keys and their own
show(slots, attn_mask=torch.arange(8)[None] < 5)
show(slots)  # five tokens in a static cache of eight slots, and no mask
show([1.0, 2, 4, 8]), show([8.0, 2, 4])  # the fourth key is written where the first one is
# Two slots of padding, two tokens of the prompt, and the one that is decoded in slot 4.
position, cache_position = torch.tensor([0, 0, 1, 1, 1]).cumsum(0) - 1, torch.arange(5)
turned = lambda at: torch.stack([torch.cos(at.float()), torch.sin(at.float())])  # (1, 0)
for decoded in position, cache_position:
    print(f"score {turned(decoded[4]) @ turned(position[2]):.6f}")
# prints:
# q3 3.750000  q4 6.200000
# q3 1.000000  q4 1.500000
# q4 6.200000
# q4 3.875000
# q3 3.750000
# q3 4.666667
# score -0.416147
# score -0.653644
