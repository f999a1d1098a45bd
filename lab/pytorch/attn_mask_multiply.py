import torch

tril = torch.ones(2, 2).tril()
scores = torch.tensor([[-2.0, 3], [-2, 3]])  # the 3 is any number: a product with 0 forgets it
right = scores.masked_fill(tril == 0, -torch.inf).softmax(-1)
for weights in right, (scores * tril).softmax(-1):
    print(f"own weight {weights[0, 0]:.6f}  future {weights[0, 1]:.6f}")

tril, values = torch.ones(4, 4).tril(), torch.tensor([1.0, 2, 4, 8])
right = torch.zeros(4, 4).masked_fill(tril == 0, -torch.inf).softmax(-1)
for weights in right, torch.zeros(4, 4).softmax(-1) * tril:
    y = weights @ values
    print(f"q0 {y[0]:.6f}  q1 {y[1]:.6f}  q2 {y[2]:.6f}")
# prints:
# own weight 1.000000  future 0.000000
# own weight 0.119203  future 0.880797
# q0 1.000000  q1 1.500000  q2 2.333333
# q0 0.250000  q1 0.750000  q2 1.750000
