import torch
from transformers import GPT2Config, GPT2LMHeadModel

text = torch.arange(33) % 15 + 1  # 1, 2, ..., 15, 1, 2, ...
inputs, shifted = text[None, :-1], text[None, 1:]
for labels in inputs, shifted:  # the model shifts its labels itself
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=32, n_layer=1, n_head=2)).eval()
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        adam.zero_grad()
        model(input_ids=inputs, labels=labels).loss.backward()
        adam.step()
    said = model(input_ids=inputs).logits.argmax(-1)[0, :31]
    print((said == text[1:32]).sum().item(), "said the next ",
          (said == text[2:33]).sum().item(), "said two on")
# prints:
# 31 said the next  0 said two on
# 0 said the next  31 said two on
