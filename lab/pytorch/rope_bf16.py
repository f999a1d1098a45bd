import torch

# A frequency of one radian a position.
for dtype in torch.float32, torch.bfloat16:
    positions = torch.arange(4096).to(dtype)
    angles = (positions * torch.ones((), dtype=dtype)).float()
    print(angles.unique().numel(), "distinct positions ",
          f"score 257 apart {angles[257].cos():.6f}")
# prints:
# 4096 distinct positions  score 257 apart 0.819306
# 769 distinct positions  score 257 apart -0.039791
