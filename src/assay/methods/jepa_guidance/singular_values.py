"""Singular values of many wide matrices, through their small Gram matrices where that is accurate."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# The Gram matrix squares the singular values: in float64 their logarithms keep an error below 1e-6 down to
# this share of the largest one. Below it the singular values are taken from a triangular factor instead.
_GRAM_LIMIT = 1e-5


def singular_values(
    matrices: Float[Tensor, "batch rows columns"],
) -> Float[Tensor, "batch rank"]:
    """The singular values of each matrix in float64, largest first; rank = min(rows, columns).

    Args:
        matrices: one matrix a sample; a matrix with a value that is not finite gives NaN.
    """
    finite = torch.isfinite(matrices).flatten(1).all(dim=1)
    wide = torch.where(finite[:, None, None], matrices, 0.0).double()
    if wide.shape[1] > wide.shape[2]:
        wide = wide.mT
    squares = torch.linalg.eigvalsh(wide @ wide.mT).flip(-1)
    values = squares.clamp_min(0).sqrt()
    small = squares[:, -1] < _GRAM_LIMIT**2 * squares[:, 0]
    if small.any():
        values[small] = torch.linalg.svdvals(torch.linalg.qr(wide[small].mT, mode="r").R)
    return torch.where(finite[:, None], values, torch.nan)
