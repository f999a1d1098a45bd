import torch

for clears in True, False:
    weight = torch.nn.Parameter(torch.zeros(()))
    sgd = torch.optim.SGD([weight], lr=0.0625)
    for _ in range(10):
        if clears:
            sgd.zero_grad()
        weight.backward()  # the loss is the weight
        sgd.step()
    print(f"gradient {weight.grad:.6f}  weight {weight.item():.6f}")
# prints:
# gradient 1.000000  weight -0.625000
# gradient 10.000000  weight -3.437500
