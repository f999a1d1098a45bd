import torch
from transformers import GPT2Config, GPT2LMHeadModel

def count(spoil):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2))
    spoil(model.transformer.h[0].mlp)
    ids = torch.arange(16)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for p in model.parameters()]
    undefined = sum(g is None for g in gradients)
    print(undefined, "undefined ", sum(g is not None and not g.any() for g in gradients), "zero")

def kill(mlp):
    mlp.act = torch.nn.ReLU()
    torch.nn.init.constant_(mlp.c_fc.bias, -10)

count(lambda mlp: None)
count(lambda mlp: mlp.act.register_forward_pre_hook(lambda act, args: (args[0].detach(),)))
count(kill)
# prints:
# 0 undefined  0 zero
# 4 undefined  0 zero
# 0 undefined  5 zero
