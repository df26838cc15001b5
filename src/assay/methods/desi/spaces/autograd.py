"""The bridge from array functions with a pullback to torch's automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


class _ArrayFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        value, ctx.pullback = function(x.detach().cpu().double().numpy())
        return torch.as_tensor(value, dtype=x.dtype, device=x.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        (gradient,) = gradients
        pulled = ctx.pullback(gradient.detach().cpu().double().numpy())
        return torch.as_tensor(pulled, dtype=gradient.dtype, device=gradient.device), None


def differentiable(
    function: Callable[[np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]],
    x: Float[Tensor, "*shape"],
) -> Tensor:
    """`function(x)` as a tensor that can be differentiated once.

    Args:
        function: maps an array to a value and a pullback (from the gradient of the value to the gradient of
            the array). It runs on the CPU in float64, whatever the device and type of `x`.
        x: its argument.
    """
    return _ArrayFunction.apply(x, function)  # pyright: ignore[reportReturnType]


def normalised(weights: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """The weights divided by the sum of their row."""
    return weights / weights.sum(dim=1, keepdim=True)
