"""Checking rows and holding some of them out."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.errors import InputError

# Rows below which a hold-out or a measured moment says nothing.
FEW_ROWS = 30


def checked_rows(
    X: Any, y: Any, *, least: int = 2
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Predictors and labels as 64-bit floats.

    Raises:
        InputError: they are not numbers, not finite, or their shapes don't fit.
    """
    try:
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"X and y must be numbers: {error}") from None
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
        raise InputError(f"X has shape {X.shape} and y {y.shape}: pass (n, d) predictors and (n,) labels")
    if len(X) < least or X.shape[1] == 0:
        raise InputError(f"X has shape {X.shape}: at least {least} rows and 1 column are needed")
    check_finite(X, y)
    return X, y


def check_finite(X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> None:
    """Raise an InputError that names the first row with NaN or infinity."""
    for name, values in (("X", X.reshape(len(X), -1)), ("y", y.reshape(len(y), -1))):
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if bad.size:
            kind = "NaN" if np.isnan(values[bad[0]]).any() else "infinity"
            raise InputError(
                f"{name} contains {kind} in row {bad[0]} ({bad.size} rows in all): drop or impute them"
            )


def split_rows(
    n: int, reserve: float, least: int, seed: int
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " r"]]:
    """Random training and reserve rows, both ascending.

    The reserve has the share `reserve` of the rows, at least `least`, at most half of all.

    Raises:
        InputError: `reserve` is no share, or the seed is not a whole number of at least 0.
    """
    if not (isinstance(seed, Integral) and seed >= 0):
        raise InputError(f"the seed is {seed!r}: pass a whole number of at least 0")
    if not (isinstance(reserve, (int, float)) and 0 < reserve < 1):
        raise InputError(f"reserve is {reserve!r}: pass a share of the rows between 0 and 1")
    size = max(1, min(max(math.ceil(reserve * n), least), n // 2))
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])
