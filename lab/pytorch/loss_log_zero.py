import torch
import torch.nn.functional as F

label = torch.tensor([0])
for loss_of in F.cross_entropy, lambda x, label: -x.softmax(-1)[0, label[0]].log():
    logits = torch.tensor([[0.0, 200]], requires_grad=True)
    loss = loss_of(logits, label)
    loss.backward()
    print(f"loss {loss:.6f}  slope {logits.grad[0, 0]:.6f}")

# The mean over the labels of a micro-batch of which all are ignored.
print(f"objective {F.cross_entropy(torch.zeros(4, 2), torch.full((4,), -100)):.6f}")
# prints:
# loss 200.000000  slope -1.000000
# loss inf  slope nan
# objective nan
