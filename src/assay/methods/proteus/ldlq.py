"""Rounding with linear feedback: LDLQ column by column, or over block columns of 16 (BlockLDLQ).

With the block factorisation H = L D L^T (L unit block lower triangular) the proxy error of E = W - Q is
tr(E H E^T) = sum_k |(E L)_k|^2 in the metric D_k, and (E L)_k is what is rounded off block column k once the
errors of the later columns have been fed back into it.

Source: Tseng et al. (2024), QuIP#, section 4 (BlockLDLQ); Chee et al. (2023), QuIP, theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from assay.methods.proteus.incoherence import TILE

# So many columns share one large matrix product for the feedback from the columns behind them.
GROUP = 128
# How often the damping is doubled before feedback is given up.
DOUBLINGS = 10


@dataclass(frozen=True)
class Feedback:
    """The factors of a damped second moment that rounding needs.

    Attributes:
        lower: L without its unit diagonal blocks; None for rounding without feedback.
        block: columns that are rounded together; divides 128.
        damping: what was added to the diagonal, relative to its mean.
        flags: what a user should know, one sentence each.
    """

    lower: Float[Tensor, "n n"] | None
    block: int
    damping: float
    flags: tuple[str, ...] = ()


def damped(hessian: Float[Tensor, "n n"], damping: float) -> Float[Tensor, "n n"]:
    """H + damping * mean(diag H) * I."""
    result = hessian.clone()
    result.diagonal().add_(damping * float(hessian.diagonal().mean()))
    return result


def block_ldl(hessian: Float[Tensor, "n n"], damping: float, *, block: int = TILE) -> Feedback:
    """Factorise a second moment, with more damping where it is not positive definite.

    Args:
        hessian: symmetric and finite, n a multiple of `block`.
        damping: the first try, relative to the mean of the diagonal; doubled up to ten times.
        block: columns that are rounded together: 16 for tiles, 1 for a scalar quantizer.

    Returns:
        The factors. Where no damping helps, or H is zero, rounding goes without feedback and a flag says so.
    """
    if not bool((hessian.diagonal() > 0).any()):
        return Feedback(None, block, damping, ("the second moment is zero: rounded without feedback",))
    tried = damping
    for _ in range(DOUBLINGS + 1):
        factor, failed = torch.linalg.cholesky_ex(damped(hessian, tried))
        if not int(failed) and bool(torch.isfinite(factor).all()):
            raised = (
                f"damping raised from {damping:g} to {tried:g}: the second moment was not positive definite"
            )
            return Feedback(_unit_lower(factor, block), block, tried, (raised,) if tried != damping else ())
        tried = 2 * tried or 1e-6
    flag = f"not positive definite even with damping {tried / 2:g}: rounded without feedback"
    return Feedback(None, block, damping, (flag,))


def _unit_lower(factor: Float[Tensor, "n n"], block: int) -> Float[Tensor, "n n"]:
    """C[:, k] C_kk^-1 for every block column k of a Cholesky factor, without the diagonal blocks."""
    n = factor.shape[0]
    blocks = n // block
    columns = factor.view(n, blocks, block).transpose(0, 1)
    index = torch.arange(blocks, device=factor.device)
    diagonal = columns.reshape(blocks, blocks, block, block)[index, index]
    lower = torch.linalg.solve_triangular(diagonal, columns, upper=False, left=False)
    lower = lower.reshape(blocks, blocks, block, block)
    lower[index, index] = 0
    return lower.reshape(blocks, n, block).transpose(0, 1).reshape(n, n).contiguous()


def ldlq(
    weights: Float[Tensor, "m n"],
    feedback: Feedback,
    quantize_block: Callable[[int, Float[Tensor, "m block"]], Float[Tensor, "m block"]],
) -> Float[Tensor, "m n"]:
    """Round a matrix block column by block column, from the last to the first.

    Args:
        weights: n a multiple of the feedback's block.
        feedback: of the inputs' second moment.
        quantize_block: rounds one block column; it is given the column's index and R_k, the column plus
            what the errors behind it ask for.

    Returns:
        The rounded matrix.
    """
    rounded = torch.empty_like(weights)
    errors = torch.zeros_like(weights)
    lower = None if feedback.lower is None else feedback.lower.to(weights.dtype)
    n = weights.shape[1]
    for group_end in range(n, 0, -GROUP):
        group_start = max(0, group_end - GROUP)
        target = weights[:, group_start:group_end].clone()
        if lower is not None and group_end < n:
            target += errors[:, group_end:] @ lower[group_end:, group_start:group_end]
        for end in range(group_end, group_start, -feedback.block):
            start = end - feedback.block
            wanted = target[:, start - group_start : end - group_start]
            if lower is not None and end < group_end:
                wanted = wanted + errors[:, end:group_end] @ lower[end:group_end, start:end]
            rounded[:, start:end] = quantize_block(start // feedback.block, wanted.contiguous())
            errors[:, start:end] = weights[:, start:end] - rounded[:, start:end]
    return rounded


def to_sequences(matrix: Shaped[Tensor, "m n"]) -> Shaped[Tensor, "mt nt 256"]:
    """The 16 x 16 tiles of a matrix as sequences in trellis time: column-major, and backwards."""
    m, n = matrix.shape
    tiles = matrix.reshape(m // TILE, TILE, n // TILE, TILE).permute(0, 2, 3, 1)
    return tiles.reshape(m // TILE, n // TILE, TILE * TILE).flip(-1)


def from_sequences(sequences: Shaped[Tensor, "mt nt 256"]) -> Shaped[Tensor, "m n"]:
    """The matrix of `to_sequences`."""
    rows, columns, _ = sequences.shape
    tiles = sequences.flip(-1).reshape(rows, columns, TILE, TILE).permute(0, 3, 1, 2)
    return tiles.reshape(rows * TILE, columns * TILE)
