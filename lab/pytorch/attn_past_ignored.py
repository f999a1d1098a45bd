import torch
from torch.nn.functional import scaled_dot_product_attention as attention

def last(v, visible=None):  # what one query gives; all scores are 0
    v = torch.tensor(v).reshape(1, 1, -1, 1)
    return attention(torch.zeros(1, 1, 1, 1), torch.zeros_like(v), v, visible).item()

# Five tokens in a static cache of eight slots, and a query that gets no mask.
cache = [1.0, 2, 4, 8, 16, 0, 0, 0]
print(f"q4 {last(cache, torch.arange(8)[None] < 5):.6f}")
print(f"q4 {last(cache):.6f}")
# The fourth key is written where the first one is.
print(f"q3 {last([1.0, 2, 4, 8]):.6f}")
print(f"q3 {last([8.0, 2, 4]):.6f}")
# Two slots of padding and two tokens; the next one is in slot 4, at position 2.
for position in 2, 4:
    print(f"score {torch.tensor(float(position)).cos():.6f}")
# prints:
# q4 6.200000
# q4 3.875000
# q3 3.750000
# q3 4.666667
# score -0.416147
# score -0.653644
