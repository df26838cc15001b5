"""Checks that every space makes on points and weights, with messages that name the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError

# Numbers that were written to a file with few digits miss an exact identity by about this much of their size.
SYMMETRY_TOLERANCE = 1e-8


def as_points(Y: Any, dimensions: int, what: str) -> Float[np.ndarray, "n ..."]:
    """`Y` as a float64 array of n >= 1 points with `dimensions` axes each, all finite.

    Raises:
        InputError: not numbers, another number of axes, no rows, or a NaN or infinity (the message names its
            row).
    """
    try:
        points = np.array(Y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} must be an array of numbers with {dimensions + 1} axes, the first over points: {error}"
        ) from None
    if points.ndim != dimensions + 1:
        raise InputError(
            f"{what} must have {dimensions + 1} axes, the first over points, but the shape is {points.shape}"
        )
    if points.size == 0:
        raise InputError(f"{what} has shape {points.shape}: at least one point with one entry is needed")
    if not np.isfinite(points).all():
        first = tuple(int(k) for k in np.argwhere(~np.isfinite(points))[0])
        raise InputError(
            f"{what}: row {first[0]} holds {points[first]} at position {first[1:]}; drop or impute the row"
        )
    return points


def as_symmetric(Y: Any, what: str) -> Float[np.ndarray, "n q q"]:
    """Square, finite and symmetric matrices, made exactly symmetric.

    Raises:
        InputError: see `as_points`; also when a matrix differs from its transpose by more than
            `SYMMETRY_TOLERANCE` times its largest entry.
    """
    matrices = as_points(Y, 2, what)
    if matrices.shape[1] != matrices.shape[2]:
        raise InputError(f"{what} must be square matrices, but the shape is {matrices.shape}")
    transposed = np.swapaxes(matrices, 1, 2)
    difference = np.abs(matrices - transposed).max(axis=(1, 2))
    refuse(
        difference > SYMMETRY_TOLERANCE * np.abs(matrices).max(axis=(1, 2)),
        difference,
        f"{what}: row {{row}} is not symmetric (it differs from its transpose by {{value:.3g}}); "
        "pass (A + A.T) / 2 if that is what is meant",
    )
    return 0.5 * (matrices + transposed)


def refuse(bad: np.ndarray, value: np.ndarray, message: str) -> None:
    """Raise InputError for the first row marked in `bad`; `message` is formatted with `row` and `value`."""
    if bad.any():
        row = int(np.argmax(bad))
        count = int(bad.sum())
        more = f" ({count} rows of {len(bad)} have this problem)" if count > 1 else ""
        raise InputError(message.format(row=row, value=float(value[row])) + more)


def as_weights(weights: Any, n: int) -> Float[np.ndarray, "m n"]:
    """Weights of m means of n points, divided by the sum of their row; negative weights are allowed.

    Dividing changes nothing for weights that sum to one, and makes the mean the minimiser of the weighted sum
    of squared distances for all others.

    Raises:
        InputError: another shape, a NaN or infinity, or a row whose sum is not positive.
    """
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != n:
        raise InputError(
            f"weights must have one row a mean and one column for each of {n} points, not {array.shape}"
        )
    total = array.sum(axis=1)
    refuse(~np.isfinite(total), total, "weights: row {row} holds a NaN or an infinity")
    refuse(total <= 0.0, total, "weights: row {row} sums to {value:.3g}; the sum must be positive")
    return array / total[:, None]
