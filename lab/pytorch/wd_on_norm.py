import torch

# The list of exceptions was written for a model that calls its norms LayerNorm.
model = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(1, bias=False)})
for exempt in ["bias", "norm.weight"], ["bias", "LayerNorm.weight"]:
    torch.nn.init.ones_(model["norm"].weight)
    groups = [{"params": [p], "weight_decay": 0 if any(e in name for e in exempt) else 2**-3}
              for name, p in model.named_parameters()]
    adamw = torch.optim.AdamW(groups, lr=2**-10)
    model["norm"].weight.grad = torch.zeros(1)
    for _ in range(8192):
        adamw.step()
    print(f"gain {model['norm'].weight.item():.4f}")
# prints:
# gain 1.0000
# gain 0.3679
