import torch

for dtype in torch.float32, torch.bfloat16:
    w = torch.ones((), dtype=dtype, requires_grad=True)
    for _ in range(1024):
        (w * 2.0**-10).backward()
    print(f"gradient {w.grad:.6f}")

x = torch.tensor(3 * [1.0] + 5 * [1.0078125])
print(f"variance {(x - x.mean()).square().mean():.6f}")
x = x.bfloat16()
print(f"variance {(x * x).mean() - x.mean() ** 2:.6f}")

variance = torch.zeros((), dtype=torch.float16)  # of a padded row
print(f"y of padding {0 / (variance + 1e-12).sqrt():.6f}")
# prints:
# gradient 1.000000
# gradient 0.250000
# variance 0.000014
# variance -0.007812
# y of padding nan
