import peft
import torch

for both_zero in False, True:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False)).requires_grad_(False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0"]), model)
    factors = [p for p in model.parameters() if p.requires_grad]
    if both_zero:
        torch.nn.init.zeros_(factors[0])
    adamw, x = torch.optim.AdamW(factors, lr=1e-2, weight_decay=0), torch.randn(8, 4)
    for _ in range(8):
        adamw.zero_grad()
        (model(x) - x).square().sum().backward()
        adamw.step()
    print(sum(bool(p.grad.any()) for p in factors), "factors with a gradient ",
          sum(bool(p.any()) for p in factors), "factors that are not 0")
# prints:
# 2 factors with a gradient  2 factors that are not 0
# 0 factors with a gradient  0 factors that are not 0
