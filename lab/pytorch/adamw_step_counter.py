import torch

# A step counter that is cast with the parameters, as a checkpoint's often is.
for dtype in torch.float32, torch.bfloat16:
    p = torch.nn.Parameter(torch.ones(1))
    adamw = torch.optim.AdamW([p], lr=1e-3, weight_decay=0)
    for _ in range(1000):
        p.grad = torch.full((1,), 0.1)
        adamw.step()
        state = adamw.state[p]
        state["step"] = state["step"].to(dtype)
    print(f"{state['step'].item():.0f} counted  p {p.item():.4f}")
# prints:
# 1000 counted  p 0.0000
# 256 counted  p 0.2041
