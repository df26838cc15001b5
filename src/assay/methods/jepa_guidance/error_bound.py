"""How far the surrogate is from JEPA-SCORE: the parts of the error, and what theory expects of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from assay.methods.jepa_guidance.randomised_svd import (
    SCORE_FLOOR,
    SURROGATE_FLOOR,
    check_rank,
    random_directions,
)
from assay.methods.jepa_guidance.singular_values import singular_values


class ErrorBound(NamedTuple):
    """The score of each sample, its surrogate, and the difference in its parts, in nats.

    js = js_surrogate + e_rsvd + e_trunc. The paper's proposition 4.1 bounds js minus the surrogate by the
    two errors. `e_rsvd` is never negative (singular values of Q^T J interlace those of J); `e_trunc` has a
    sign: it is negative where the discarded singular values are below 1.

    Attributes:
        js: the score, all singular values.
        js_top_k: the sum over the k leading ones.
        js_surrogate: the sum over the k leading ones of Q^T J.
        e_rsvd: js_top_k - js_surrogate.
        e_trunc: js - js_top_k.
        residual: |(I - Q Q^T) J|, the spectral norm of what Q misses.
        expected_residual: the bound of Halko, Martinsson and Tropp (2011, theorem 10.6 and corollary 10.10)
            on the residual's expectation; NaN for fewer than 2 additional directions.
    """

    js: Float[Tensor, " batch"]
    js_top_k: Float[Tensor, " batch"]
    js_surrogate: Float[Tensor, " batch"]
    e_rsvd: Float[Tensor, " batch"]
    e_trunc: Float[Tensor, " batch"]
    residual: Float[Tensor, " batch"]
    expected_residual: Float[Tensor, " batch"]


def surrogate_error(
    jacobian: Float[Tensor, "batch d n"],
    x: Float[Tensor, "batch ..."],
    *,
    k: int,
    oversample: int,
    power_iters: int,
    seed: int,
) -> ErrorBound:
    """The parts of the error for Jacobians that are known in full.

    Args:
        jacobian: the Jacobians at `x`.
        x: the samples, for the shape of the random directions.
        k: how many singular values the surrogate sums.
        oversample: additional random directions.
        power_iters: power iterations.
        seed: of the random directions.

    Raises:
        InputError: k + oversample is more than the rank of the Jacobians.
    """
    check_rank(k, oversample, *jacobian.shape[1:])
    matrix = jacobian.double()
    generator = torch.Generator().manual_seed(seed)
    directions = random_directions(k + oversample, x.double(), generator).flatten(2).permute(1, 2, 0)
    basis = torch.linalg.qr(matrix @ directions).Q
    for _ in range(power_iters):
        basis = torch.linalg.qr(matrix @ (matrix.mT @ basis)).Q
    projected = basis.mT @ matrix
    spectrum = singular_values(matrix)
    js = spectrum.clamp_min(SCORE_FLOOR).log().sum(dim=1)
    js_top_k = spectrum[:, :k].clamp_min(SURROGATE_FLOOR).log().sum(dim=1)
    js_surrogate = singular_values(projected)[:, :k].clamp_min(SURROGATE_FLOOR).log().sum(dim=1)
    return ErrorBound(
        js=js,
        js_top_k=js_top_k,
        js_surrogate=js_surrogate,
        e_rsvd=js_top_k - js_surrogate,
        e_trunc=js - js_top_k,
        residual=singular_values(matrix - basis @ projected)[:, 0],
        expected_residual=expected_residual(spectrum, k, oversample, power_iters),
    )


def expected_residual(
    spectrum: Float[Tensor, "batch rank"], k: int, oversample: int, power_iters: int
) -> Float[Tensor, " batch"]:
    """The bound on the expected spectral norm of what a randomised range finder misses.

    Args:
        spectrum: all singular values, largest first.
        k: target rank.
        oversample: additional directions; NaN is returned for fewer than 2.
        power_iters: power iterations.
    """
    if oversample < 2:
        return torch.full_like(spectrum[:, 0], torch.nan)
    power = 2 * power_iters + 1
    tail = spectrum[:, k:]
    if tail.shape[1] == 0:
        return torch.zeros_like(spectrum[:, 0])
    # Scaled by the first of the tail, so that high powers of small numbers do not vanish.
    scale = tail[:, :1].clamp_min(torch.finfo(tail.dtype).tiny)
    rest = ((tail / scale) ** (2 * power)).sum(dim=1).sqrt()
    factor = 1 + math.sqrt(k / (oversample - 1)) + math.e * math.sqrt(k + oversample) / oversample * rest
    return scale[:, 0] * factor ** (1 / power)
