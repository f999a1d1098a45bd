import torch

a, b = torch.tensor([[1.0, 10, 100, 1000]]), torch.tensor([[1.0], [2], [3], [4]])
layer, x = torch.nn.Linear(4, 4, bias=False).requires_grad_(False), torch.eye(4)[0]
for product in b @ a, (b @ a).T:  # the second fits a weight [in, out], and a square [out, in] too
    layer.weight.zero_()
    layer.weight += product
    print(f"second output merged {layer(x)[1]:.6f}")
# prints:
# second output merged 2.000000
# second output merged 10.000000
