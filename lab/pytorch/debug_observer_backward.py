import torch

def check_gradient_flow(module, args, output):
    output.sum().backward(retain_graph=True)

layer = torch.nn.Linear(1, 1, bias=False)
for watched in False, True:
    if watched:
        layer.register_forward_hook(check_gradient_flow)
    for factor in 1, 3:
        layer.zero_grad()
        (factor * layer(torch.ones(1))).sum().backward()
        print(f"gradient of {factor} y {layer.weight.grad.item():.6f}")
# prints:
# gradient of 1 y 1.000000
# gradient of 3 y 3.000000
# gradient of 1 y 2.000000
# gradient of 3 y 4.000000
