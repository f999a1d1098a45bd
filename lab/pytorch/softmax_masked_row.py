import torch

# Two tokens of text and two of padding. All scores are 0, and the loss reads the text only.
text = torch.tensor([True, True, False, False])
keys_only = torch.ones(4, 4, dtype=torch.bool).tril() & text
for visible in keys_only, keys_only & text[:, None]:
    q, k = torch.ones(4, 1, requires_grad=True), torch.zeros(4, 1, requires_grad=True)
    v = torch.tensor([[1.0], [2], [4], [8]], requires_grad=True)
    y = (q @ k.T).masked_fill(~visible, -torch.inf).softmax(-1) @ v
    torch.where(text[:, None], y, 0).sum().backward()
    finite = sum(x.grad.isfinite().sum().item() for x in (q, k, v))
    print(f"padded row {y[2, 0]:.6f}  dv0 {v.grad[0, 0]:.6f}  {finite} finite")
# prints:
# padded row 1.500000  dv0 1.500000  12 finite
# padded row nan  dv0 nan  8 finite
# mended: scaled_dot_product_attention gave NaN for such a row up to PyTorch 2.4.1, and gives zeros since.
# A softmax that is written out, as here, still does.
