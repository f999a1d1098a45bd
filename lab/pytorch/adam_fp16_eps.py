import torch

# The gradients 1e-5, 1e-8 and 0, which are constant; Adam makes its moments in the weights' dtype.
for dtype in torch.float32, torch.float16:
    w = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    adam = torch.optim.AdamW([w], lr=1e-3, eps=1e-8, weight_decay=0)
    for _ in range(20):
        w.grad = torch.tensor([1e-5, 1e-8, 0], dtype=dtype)
        adam.step()
    print("w", *[f"{x:.6f}" for x in w.tolist()])
# prints:
# w 0.980021 0.990000 1.000000
# w -inf nan nan
