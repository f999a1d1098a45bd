import torch

a, b = torch.tensor([[1.0, 2]]), torch.tensor([[3.0], [5], [7]])
layer, x = torch.nn.Linear(2, 3, bias=False).requires_grad_(False), torch.ones(2)
layer.weight.fill_(1)
for _ in range(2):  # the second time while the model is saved
    layer.weight += b @ a
    print(f"first output merged {layer(x)[0]:.6f}")
# prints:
# first output merged 11.000000
# first output merged 20.000000
# mended: merge() of PEFT gave these figures up to release 0.8.1, with a warning; since then the second
# call changes nothing.
