import torch
import torch.nn.functional as F

# 10 tokens of loss 2 and 1,000 of loss 1: with logits (b, x) the loss is ln(1 + exp(x - b)).
def micro_batch(b, tokens, loss):
    x = torch.tensor(loss, dtype=torch.float64).expm1().log()
    return torch.stack([b, x]).expand(tokens, 2), torch.zeros(tokens, dtype=torch.int64)

def step(reduction, divisor):
    b = torch.zeros((), dtype=torch.float64, requires_grad=True)
    total = 0.0
    for tokens, loss in [(10, 2.0), (1000, 1.0)]:
        part = F.cross_entropy(*micro_batch(b, tokens, loss), reduction=reduction) / divisor
        part.backward()
        total += part.item()
    print(f"objective {total:.6f}  slope {b.grad:.6f}")

step("sum", 1010)
step("mean", 2)
# prints:
# objective 1.009901  slope -0.634423
# objective 1.500000  slope -0.748393
# mended: The Trainer of transformers averaged so up to release 4.45.2.
