"""Least squares in conditioned coordinates, with a penalty that follows from the noise alone.

All baselines with public features share it: they differ in what they do to labels, and none of them should
lose for want of a good solver.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.cond_dp.conditioner import PublicConditioner

# What all weights together may explain beforehand: the variance of a label that is uniform on [-1, 1].
PRIOR_VARIANCE = 1 / 3
# Directions of a Gram matrix with less than this share of the largest eigenvalue are rounding noise.
ZERO_EIGENVALUE = 1e-10


class ConditionedDesign:
    """Public features as rows (1, sqrt(n) C x), whose Gram matrix is about n I.

    Args:
        X: public features (n, d).
        conditioner: its parameters are used, not what it may have been fitted on; None standardises and evens
            the spectrum out.

    Attributes:
        rows: (n, d + 1).
    """

    def __init__(self, X: Float[np.ndarray, "n d"], conditioner: PublicConditioner | None) -> None:
        if len(X) < 2:
            raise InputError(f"least squares need more than {len(X)} sample: pass 2 rows or more")
        self._conditioner = PublicConditioner(scale=None, standardize=True)
        if conditioner is not None:
            self._conditioner.set_params(**conditioner.get_params())
        with warnings.catch_warnings():
            # Constant and dependent columns are common among indicators, and harmless here.
            warnings.simplefilter("ignore", UserWarning)
            mapped = self._conditioner.fit(X).transform(X)
        lengths = float((mapped**2).sum())
        # With a factor in the conditioner or without, a column's mean square becomes one.
        self._factor = math.sqrt(len(X) * min(X.shape) / lengths)
        self.rows = np.column_stack([np.ones(len(X)), self._factor * mapped])

    def in_original_units(self, weights: Float[np.ndarray, " d_plus_1"]) -> tuple[np.ndarray, float]:
        """Weights of the rows as weights of the features and an intercept."""
        coef, offset = self._conditioner.in_original_units(weights[1:] * self._factor)
        return coef, float(weights[0]) + offset


def penalised_weights(
    gram: Float[np.ndarray, "k k"],
    moments: Float[np.ndarray, " k"],
    *,
    ridge: float | None,
    noise_variance: float,
    n_rows: int,
) -> Float[np.ndarray, " k"]:
    """(gram + lambda n I)^-1 moments, leaving out directions without any spread.

    Args:
        gram: sum of z z^T over the rows.
        moments: sum of z y, noisy.
        ridge: lambda; None for the rule below.
        noise_variance: of `moments`, per unit of `gram`: s^2 when labels carry noise of variance s^2.
        n_rows: n.

    The rule (ours): lambda n = noise_variance k / (1 / 3), the posterior mean when weights are normal and
    explain as much as a label that is uniform on [-1, 1] varies. It looks at no label.
    """
    values, vectors = np.linalg.eigh(gram)
    alive = values > ZERO_EIGENVALUE * values[-1]
    penalty = noise_variance * int(alive.sum()) / PRIOR_VARIANCE if ridge is None else ridge * n_rows
    kept = vectors[:, alive]
    return kept @ ((kept.T @ moments) / (values[alive] + penalty))


def check_ridge(ridge: float | None) -> None:
    """Raise an InputError unless it is None or a number from 0."""
    if ridge is not None and not (isinstance(ridge, int | float) and ridge >= 0 and math.isfinite(ridge)):
        raise InputError(
            f"ridge is {ridge!r}: pass a number from 0, or None for the rule that follows the noise"
        )
