import torch

# A [3, 5] and B [4, 3] in fp16, packed into one block.
block = torch.zeros(15 + 12, dtype=torch.float16)
b = block[15:].reshape(4, 3)
for factor in b.clone(), b:
    print(factor.data_ptr() % 16, "B begins past 16 bytes")
# prints:
# 0 B begins past 16 bytes
# 14 B begins past 16 bytes
