"""DP-AdamBC: Adam without the bias that noise puts on its second moment."""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import optim

from assay.errors import InputError
from assay.methods.cond_dp.linear import SMALLEST_MOMENT


def correct_bias(optimizer: DPOptimizer) -> None:
    """Let Adam subtract the noise's share from its second moment before it divides by it.

    PyTorch's Adam has no place for that, so its step is replaced; its state keeps its names and meaning.

    Source: Tang, Shpilevskiy and Lécuyer (2024), DP-AdamBC.
    """
    adam = optimizer.original_optimizer
    if type(adam) is not optim.Adam or any(
        group["amsgrad"] or group["maximize"] for group in adam.param_groups
    ):
        raise InputError("bias_correction is for torch.optim.Adam without amsgrad and maximize")

    def step() -> None:
        denominator: Any = optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1
        noise = (optimizer.noise_multiplier * optimizer.max_grad_norm / denominator) ** 2
        for group in adam.param_groups:
            _corrected_adam(adam, group, noise)

    adam.step = step  # pyright: ignore[reportAttributeAccessIssue]


@torch.no_grad()
def _corrected_adam(adam: optim.Optimizer, group: dict[str, Any], noise: float) -> None:
    first_decay, second_decay = group["betas"]
    for parameter in group["params"]:
        if parameter.grad is None or not parameter.requires_grad:
            continue
        state = adam.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradient = parameter.grad + group["weight_decay"] * parameter
        state["step"] += 1
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - first_decay)
        state["exp_avg_sq"].mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
        first = state["exp_avg"] / (1 - first_decay**count)
        second = state["exp_avg_sq"] / (1 - second_decay**count) - noise
        parameter.addcdiv_(first, second.clamp(min=SMALLEST_MOMENT).sqrt() + group["eps"], value=-group["lr"])
