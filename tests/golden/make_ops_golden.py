"""Makes ops_golden.safetensors: inputs, upstream gradient, output and input gradients of ops, f64.

Sample k of an op is named op.k: inputs by their names, output `y`, upstream gradient `dy`, input
gradients `d` + input. Integer attributes and index inputs are I32.
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_file

HERE = pathlib.Path(__file__).resolve().parent


class Samples:
    def __init__(self):
        self.rng = np.random.default_rng(7)
        self.tensors = {}
        self.counts = {}

    def normal(self, *shape, scale=1.0):
        return torch.from_numpy(np.asarray(scale * self.rng.standard_normal(shape)))

    def add(self, op, function, inputs, **attributes):
        """inputs: name -> tensor; those of f64 get a gradient. attributes are written as I32."""
        k = self.counts[op] = self.counts.get(op, -1) + 1
        prefix = f"{op}.{k}."
        inputs = {name: t.clone() for name, t in inputs.items()}
        wanted = {name: t.requires_grad_() for name, t in inputs.items() if t.is_floating_point()}
        y = function(*inputs.values())
        dy = self.normal(*y.shape)
        gradients = torch.autograd.grad(y, list(wanted.values()), dy)
        for name, t in inputs.items():
            t = t.detach().numpy()
            self.tensors[prefix + name] = t if t.dtype == np.float64 else t.astype(np.int32)
        for name, gradient in zip(wanted, gradients):
            self.tensors[prefix + "d" + name] = gradient.numpy()
        self.tensors[prefix + "y"] = y.detach().numpy()
        self.tensors[prefix + "dy"] = dy.numpy()
        for name, value in attributes.items():
            self.tensors[prefix + name] = np.asarray(value, dtype=np.int32)


def add_elementwise(s):
    # Both tails, zero, and the bend of every curve.
    ramp = torch.linspace(-12, 12, 49, dtype=torch.float64)
    for op, function in {
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu,
        "silu": F.silu,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }.items():
        s.add(op, function, {"x": s.normal(3, 7)})
        s.add(op, function, {"x": ramp})
    s.add("rsqrt", torch.rsqrt, {"x": s.normal(3, 7).abs() + 0.1})
    s.add("rsqrt", torch.rsqrt, {"x": torch.logspace(-6, 6, 13, dtype=torch.float64)})

    away = lambda t: t + 0.5 * t.sign()
    s.add("div", torch.div, {"a": s.normal(3, 5), "b": away(s.normal(3, 5))})
    s.add("div", torch.div, {"a": s.normal(2, 3, 5), "b": away(s.normal(3, 1))})
    s.add("div", torch.div, {"a": s.normal(4, 1), "b": away(s.normal(2, 1, 3))})
    s.add("maximum", torch.maximum, {"a": s.normal(3, 5), "b": s.normal(3, 5)})
    s.add("maximum", torch.maximum, {"a": s.normal(2, 3, 5), "b": s.normal(5)})
    for shapes in (((3, 5), (3, 5), (3, 5)), ((3, 1), (2, 3, 5), (5,))):
        condition = torch.from_numpy(s.rng.random(shapes[0]) < 0.5)
        inputs = {"condition": condition, "a": s.normal(*shapes[1]), "b": s.normal(*shapes[2])}
        s.add("where", torch.where, inputs)


def add_reductions(s):
    for op, function in {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax}.items():
        for dims, keep in (([1], 1), ([0, 2], 1), ([2], 0), ([0, 1, 2], 0)):
            f = lambda x, function=function, d=dims, keep=keep: function(
                x, dim=d, keepdim=bool(keep)
            )
            s.add(op, f, {"x": s.normal(3, 4, 5)}, dims=dims, keep=keep)
    for op, function in {"softmax": torch.softmax, "log_softmax": torch.log_softmax}.items():
        for shape, dim, scale in (((4, 7), 1, 1), ((2, 3, 5), 1, 1), ((3, 9), 1, 300)):
            f = lambda x, function=function, dim=dim: function(x, dim=dim)
            s.add(op, f, {"x": s.normal(*shape, scale=scale)}, dim=dim)


def add_layers(s):
    norm = lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5)
    for shape, offset in (((2, 3, 8), 0), ((4, 13), 100)):
        width = shape[-1]
        inputs = {
            "x": offset + s.normal(*shape),
            "weight": s.normal(width),
            "bias": s.normal(width),
        }
        s.add("layer_norm", norm, inputs)

    # The output is the loss of each row; an ignored row (label -1) has loss 0 and no gradient.
    losses = lambda x, labels: F.cross_entropy(x, labels, ignore_index=-1, reduction="none")
    s.add(
        "cross_entropy", losses, {"x": s.normal(5, 11), "labels": torch.tensor([3, -1, 0, 10, -1])}
    )
    s.add(
        "cross_entropy",
        losses,
        {"x": s.normal(4, 6, scale=300), "labels": torch.tensor([5, 0, 2, -1])},
    )

    rows = lambda weight, ids: F.embedding(ids, weight)
    s.add(
        "embedding", rows, {"weight": s.normal(7, 4), "ids": torch.tensor([[0, 6, 2], [2, 2, 5]])}
    )

    for a, b in (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (3, 4, 2)),
        ((5, 2, 3), (3, 1)),
    ):
        s.add("matmul", torch.matmul, {"a": s.normal(*a), "b": s.normal(*b)})
    for shape in ((4, 6), (2, 3, 6)):
        s.add(
            "linear",
            F.linear,
            {"x": s.normal(*shape), "weight": s.normal(5, 6), "bias": s.normal(5)},
        )
    s.add("linear", F.linear, {"x": s.normal(4, 6), "weight": s.normal(5, 6)})


def add_selections(s):
    for dim, widths in ((0, (2, 3, 1)), (1, (4, 1, 2))):
        shape = lambda width, dim=dim: (width, 4) if dim == 0 else (3, width)
        inputs = {name: s.normal(*shape(width)) for name, width in zip("abc", widths)}
        s.add("cat", lambda *parts, dim=dim: torch.cat(parts, dim), inputs, dim=dim)
    for dim, begin, end in ((0, 1, 3), (1, 0, 2), (2, 4, 5)):
        f = lambda x, dim=dim, begin=begin, end=end: x.narrow(dim, begin, end - begin)
        s.add("slice", f, {"x": s.normal(3, 4, 5)}, dim=dim, begin=begin, end=end)
    for dim, index in ((0, [2, 0, 2, 2]), (1, [3]), (2, [4, 3, 2, 1, 0, 0])):
        f = lambda x, index, dim=dim: torch.index_select(x, dim, index)
        s.add("index_select", f, {"x": s.normal(3, 4, 5), "index": torch.tensor(index)}, dim=dim)


def main():
    torch.set_num_threads(1)
    samples = Samples()
    add_elementwise(samples)
    add_reductions(samples)
    add_layers(samples)
    add_selections(samples)
    safetensors_file.write(HERE / "ops_golden.safetensors", samples.tensors)
    print(", ".join(f"{op} {k + 1}" for op, k in samples.counts.items()))


if __name__ == "__main__":
    main()
