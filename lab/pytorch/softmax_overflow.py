import torch

x = torch.tensor([89.0, 0])
for weights in x.softmax(0), x.exp() / x.exp().sum():
    print(f"weight of 89 {weights[0]:.6f}")

q = k = torch.full((128,), 23, dtype=torch.float16)
for scale_late in False, True:
    scores = (q @ k) / 128**0.5 if scale_late else (q / 128**0.5) @ k
    weights = torch.stack([scores, torch.zeros_like(scores)]).softmax(0)
    print(f"output {weights @ torch.tensor([1.0, 2], dtype=torch.float16):.6f}")
# prints:
# weight of 89 1.000000
# weight of 89 nan
# output 1.000000
# output nan
