"""The smallest change of a vector that pushes all soft values to their side, by at least a margin.

min ||d||^2 subject to b_j <w_j, a + d> >= m for all j. Its dual is a quadratic programme over the positive
orthant, solved one coordinate at a time; d = sum of lambda_j b_j w_j.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Bool, Float

SWEEPS = 300


@numba.njit(cache=True, nogil=True)
def _coordinate_ascent(gram, lack, multipliers, active, sweeps, tolerance):  # pragma: no cover - compiled
    count = lack.shape[0]
    pushed = gram @ multipliers
    for _ in range(sweeps):
        largest = 0.0
        for j in range(count):
            if not active[j]:
                continue
            old = multipliers[j]
            new = max(0.0, old + (lack[j] - pushed[j]) / gram[j, j])
            step = new - old
            if step != 0.0:
                multipliers[j] = new
                for i in range(count):
                    pushed[i] += gram[i, j] * step
                largest = max(largest, abs(step))
        if largest < tolerance:
            break
    return multipliers


def solve_dual(
    gram: Float[np.ndarray, "bits bits"],
    lack: Float[np.ndarray, " bits"],
    *,
    start: Float[np.ndarray, " bits"] | None = None,
    active: Bool[np.ndarray, " bits"] | None = None,
) -> Float[np.ndarray, " bits"]:
    """The multipliers lambda >= 0 that maximise sum lambda_j lack_j - lambda' G lambda / 2.

    Args:
        gram: G, inner products of the signed carriers.
        lack: the margin less the soft values as they are.
        start: multipliers to start from.
        active: constraints that count; the multipliers of the others stay 0.
    """
    count = len(lack)
    active = np.ones(count, bool) if active is None else active
    multipliers = np.zeros(count) if start is None else np.where(active, start, 0.0)
    tolerance = 1e-5 * (1e-9 + float(np.abs(lack).max()))
    return _coordinate_ascent(np.ascontiguousarray(gram), lack, multipliers, active, SWEEPS, tolerance)


def energy(gram: Float[np.ndarray, "bits bits"], multipliers: Float[np.ndarray, " bits"]) -> float:
    """||d||^2 of the change that the multipliers make."""
    return float(multipliers @ gram @ multipliers)
