import torch
from torch.nn.functional import scaled_dot_product_attention as attention

# Four sequences of 4, 1, 3 and 2 tokens, padded to 4, so B = T. All scores are 0, values are 2^key.
q = k = torch.zeros(4, 2, 4, 1)
v = torch.tensor([1.0, 2, 4, 8]).reshape(1, 1, 4, 1).expand(4, 2, 4, 1)
valid = torch.arange(4) < torch.tensor([[4], [1], [3], [2]])  # [B, T]
for mask in valid[:, None, None, :], valid:
    y = attention(q, k, v, mask)[:, 0, :, 0]  # the first head, [B, T]
    print(f"b0 q1 {y[0, 1]:.6f}  b1 q0 {y[1, 0]:.6f}  b2 q3 {y[2, 3]:.6f}")

# A mask of ones and zeros that is not bool is added to the scores, and hides nothing.
causal = torch.ones(4, 4).tril()
for mask in causal.bool(), causal:
    y = attention(q, k, v, mask)[0, 0, :, 0]
    print(f"q0 {y[0]:.6f}  q1 {y[1]:.6f}  q2 {y[2]:.6f}")
# prints:
# b0 q1 3.750000  b1 q0 1.000000  b2 q3 2.333333
# b0 q1 1.000000  b1 q0 3.750000  b2 q3 1.500000
# q0 1.000000  q1 1.500000  q2 2.333333
# q0 2.923655  q1 2.710236  q2 2.952313
