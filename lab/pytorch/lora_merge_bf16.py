import peft
import torch

# Weights N(0, 0.02) in bf16, and a product B A with the deviation 1e-5.
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2048, 2048, bias=False, dtype=torch.bfloat16))
before = model[0].weight.data.normal_(0, 0.02).clone()
peft.inject_adapter_in_model(peft.LoraConfig(r=64, lora_alpha=64, target_modules=["0"]), model)
a = model[0].lora_A.default.weight.data.normal_(0, 1)
b = model[0].lora_B.default.weight.data.normal_(0, 1e-5 / 8)
product = b.float() @ a.float()
model[0].merge()
added = model[0].get_base_layer().weight.float() - before.float()
print(f"unchanged {(added == 0).float().mean():.2f}")
print(f"survived {(added * product).sum() / product.square().sum():.2f}")
# prints:
# unchanged 0.88
# survived 0.28
