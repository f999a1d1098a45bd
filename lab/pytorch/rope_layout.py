import torch

def turned(x, position, dim):  # dim 0: neighbours are pairs, as in Meta's weights; 1: halves are
    angles = position * torch.tensor([1.0, 0.01], dtype=torch.float64)
    a, b = x.reshape(2, 2).unbind(1 - dim)
    turned = [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()]
    return torch.stack(turned, 1 - dim).flatten()

x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
for dim in 0, 1:
    print(f"score at distance 1 {turned(x, 1, dim) @ turned(x, 0, dim):.5f}")
# prints:
# score at distance 1 27.70026
# score at distance 1 25.40202
