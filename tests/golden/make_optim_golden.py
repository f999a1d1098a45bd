"""Makes optim_golden.safetensors: SGD and AdamW from given gradients, and Adam's bias corrections.

The gradients are given, not computed: a trajectory then depends on the optimizer alone.
"""

import pathlib

import numpy as np
import torch

import safetensors_file

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 20
BETAS = (0.9, 0.95, 0.99, 0.999)

# Each key is the name of a trajectory; the numbers are written beside it.
RUNS = {
    "sgd": dict(lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False),
    "sgd_momentum": dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=False),
    "sgd_nesterov": dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adamw": dict(lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1),
    "adamw_fast": dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-6, weight_decay=0.0),
}


def optimizer_of(parameter, run):
    plain = dict(foreach=False, fused=False)
    if "beta1" in run:
        rest = {key: run[key] for key in ("lr", "eps", "weight_decay")}
        return torch.optim.AdamW([parameter], betas=(run["beta1"], run["beta2"]), **rest, **plain)
    return torch.optim.SGD([parameter], **run, **plain)


def trajectory(init, gradients, run, dtype):
    """The parameter after each step, [STEPS, n]."""
    parameter = torch.tensor(init, dtype=dtype, requires_grad=True)
    optimizer = optimizer_of(parameter, run)
    after = []
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
        after.append(parameter.detach().numpy().copy())
    return np.stack(after)


def main():
    rng = np.random.default_rng(11)
    # One column each: ordinary, large, near epsilon, far below it, zero at first, zero always,
    # of one sign, one lone spike.
    scale = np.array([1, 1e4, 1e-8, 1e-20, 1, 0, 1, 1])
    gradients = rng.standard_normal((STEPS, scale.size)) * scale
    gradients[:5, 4] = 0
    gradients[:, 6] = np.abs(gradients[:, 6])
    gradients[:, 7] = 0
    gradients[3, 7] = 100
    gradients = gradients.astype(np.float32)
    init = rng.standard_normal(scale.size).astype(np.float32)

    golden = {"init": init, "gradients": gradients}
    for name, run in RUNS.items():
        golden[f"{name}.f64"] = trajectory(init, gradients, run, torch.float64)
        golden[f"{name}.f32"] = trajectory(init, gradients, run, torch.float32)
        for key, value in run.items():
            golden[f"{name}.{key}"] = np.float64(value)

    # PyTorch computes these in Python floats, by the C library's pow.
    steps = list(range(1, 2001)) + list(range(2000 + 997, 300001, 997))
    golden["bias_correction.steps"] = np.array(steps, dtype=np.int32)
    golden["bias_correction.betas"] = np.array(BETAS)
    golden["bias_correction.values"] = np.array(
        [[1 - beta**step for step in steps] for beta in BETAS]
    )
    safetensors_file.write(HERE / "optim_golden.safetensors", golden)


if __name__ == "__main__":
    main()
