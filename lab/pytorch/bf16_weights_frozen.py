import torch

# A weight of 0.02 under a constant gradient: the update is half of what would move it in bf16.
for dtype in torch.float32, torch.bfloat16:
    weight = torch.full((), 0.02, dtype=dtype)
    first = weight.clone()
    for _ in range(1000):
        weight -= 3.05e-5
    print(f"moved by {first - weight:.2f}")
# prints:
# moved by 0.03
# moved by 0.00
