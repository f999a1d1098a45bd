import peft
import torch

# An adapter that was trained as the first configuration says, and the key that gets lost.
for use_rslora in True, False:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False).requires_grad_(False))
    model[0].weight.zero_()
    peft.inject_adapter_in_model(peft.LoraConfig(
        r=64, lora_alpha=16, target_modules=["0"], use_rslora=use_rslora), model)
    for factor in model[0].lora_A.default.weight, model[0].lora_B.default.weight:
        torch.nn.init.constant_(factor, 2**-4)
    output = model(torch.tensor([1.0, 0]))[0]
    print(f"scale {model[0].scaling['default']:.6f}  output {output:.6f}")
# prints:
# scale 2.000000  output 0.500000
# scale 0.250000  output 0.062500
