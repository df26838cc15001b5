"""How much conditioning can gain, from the spectrum of the features before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.errors import InputError
from assay.methods.cond_dp.gram import moments, row_chunks, zero_singular_value
from assay.methods.cond_dp.validation import check_finite


@dataclass(frozen=True)
class PredictedGain:
    """The factor between the bounds on the excess risk of DP-SGD and of Cond-DP.

    Args:
        lowest: 1, when the labels follow the largest singular direction.
        highest: s_1 / s_r, when they follow the smallest one.
        for_labels: the factor for the labels that were given, or None. NOT private.
    """

    lowest: float
    highest: float
    for_labels: float | None


def predicted_gain(X: Any, y: Any = None, *, standardize: bool = False) -> PredictedGain:
    """rho = sqrt(sum_i (yhat_i s_1 / s_i)^2 / sum_i yhat_i^2) with yhat = U' y, and the range that it lies
    in.

    The range needs no label, so it may be printed and used to choose among public features. The factor for
    given labels is computed from them without noise: a diagnostic for those who may see them.

    Args:
        X: public features (n, d).
        y: labels (n,), or None.
        standardize: of the columns of X, before.

    Raises:
        InputError: X or y is not finite, or y has another length.

    Source: the bounds of section 4 for label privacy and a start at zero.
    """
    values = np.asarray(X, dtype=float)
    if values.ndim != 2:
        raise InputError(f"X must be a table, not an array of shape {values.shape}")
    collected = moments(row_chunks(values))
    scale = np.ones(values.shape[1])
    mean = np.zeros(values.shape[1])
    gram = collected.gram
    if standardize:
        scale = np.sqrt(np.maximum(np.diag(collected.centred) / collected.n_rows, 0.0))
        # Constant columns have no direction.
        scale[scale <= 1e-12 * np.abs(values).max(axis=0)] = np.inf
        mean = collected.sums / collected.n_rows
        gram = collected.centred / np.outer(scale, scale)
    squares, vectors = np.linalg.eigh(gram)
    nonzero = squares > zero_singular_value(values.shape[1]) ** 2 * squares[-1]
    if not nonzero.any():
        raise InputError("every column is constant: there is no spectrum")
    singular, vectors = np.sqrt(squares[nonzero]), vectors[:, nonzero]
    factor = None
    if y is not None:
        labels = np.asarray(y, dtype=float)
        if labels.shape != (len(values),):
            raise InputError(f"y has the shape {labels.shape}, but X has {len(values)} rows")
        check_finite(labels[:, None], ["y"])
        projected = ((labels @ values - labels.sum() * mean) / scale) @ vectors / singular
        if not projected.any():
            raise InputError("the labels have no part in the span of the features: there is nothing to gain")
        weighted = projected * singular[-1] / singular
        factor = float(np.sqrt((weighted**2).sum() / (projected**2).sum()))
    return PredictedGain(1.0, float(singular[-1] / singular[0]), factor)
