"""Noise is added once, to sufficient statistics: label-ssp for private labels, AdaSSP for private rows."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from assay.errors import InputError
from assay.methods.cond_dp.accounting import PrivacyReport, gaussian_mu
from assay.methods.cond_dp.baselines.design import ConditionedDesign, check_ridge, penalised_weights
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.validation import PrivateRegressor

PUBLIC = ("features of the training rows", "their number", "the y-range", "the hyper-parameters")


class LabelSSPRegressor(PrivateRegressor):
    """One noisy release of Z^T y, the only statistic of least squares that labels enter.

    Features are public, so Z^T Z needs no noise. Z are conditioned features with an intercept; rows longer
    than a quantile of all lengths are weighted down to it, which bounds what one label can do to
    (y range) x (that length). The weighted least squares stay unbiased.

    Args:
        epsilon, delta: the budget for replacing one label.
        y_range: smallest and largest possible label, declared.
        row_quantile: the quantile of row lengths beyond which rows are weighted down.
        ridge: penalty as a share of the Gram matrix's eigenvalues; None for a rule that follows the noise.
        conditioner: parameters of the conditioning; None standardises and evens the spectrum out.
        random_state: seed of the noise; None for the operating system's entropy.

    Source: ours; sufficient statistics perturbation is Vu and Slavkovic (2009), McSherry and Mironov (2009).
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        row_quantile: float = 0.99,
        ridge: float | None = None,
        conditioner: PublicConditioner | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.y_range = y_range
        self.row_quantile = row_quantile
        self.ridge = ridge
        self.conditioner = conditioner
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_ridge(self.ridge)
        if not (isinstance(self.row_quantile, int | float) and 0 < self.row_quantile <= 1):
            raise InputError(f"row_quantile is {self.row_quantile!r}: pass a number above 0, at most 1")

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " d"], float]:
        design = ConditionedDesign(X, self.conditioner)
        lengths = np.linalg.norm(design.rows, axis=1)
        longest = float(np.quantile(lengths, self.row_quantile))
        weighted = design.rows * np.minimum(1.0, longest / lengths)[:, None]
        # A label moves by at most 2, and with it the sum by 2 x longest.
        noise = 2 * longest / gaussian_mu(self.epsilon, self.delta)
        moments = weighted.T @ t + noise * rng.standard_normal(weighted.shape[1])
        weights = penalised_weights(
            weighted.T @ design.rows,
            moments,
            ridge=self.ridge,
            noise_variance=noise**2 / len(X),
            n_rows=len(X),
        )
        self.privacy_ = PrivacyReport(
            mechanism="one Gaussian release of the features' products with the labels",
            adjacency="replace_label",
            epsilon={"replace_label": float(self.epsilon)},
            delta=self.delta,
            public=PUBLIC,
            notes=self._seed_notes(),
        )
        return design.in_original_units(weights)


class AdaSSPRegressor(PrivateRegressor):
    """Least squares from noisy X^T X and X^T y with an adaptive penalty: features are private too.

    The published constants, sqrt(log(6 / delta)) / (epsilon / 3) for each of three releases, are smaller than
    what a Gaussian mechanism with (epsilon / 3, delta / 3) needs (by 5% at epsilon 1, 13% at 4). Here the
    three releases together cost exactly (epsilon, delta), which also needs less noise.

    Args:
        epsilon, delta: the budget for adding or removing one row.
        y_range: smallest and largest possible label, declared.
        row_norm: largest possible length of a row (x, 1), declared; longer rows are shortened to it.
        failure: probability with which the penalty may be too small for the noise.
        random_state: seed of the noise; None for the operating system's entropy.

    Source: Wang (2018), Revisiting differentially private linear regression, Algorithm 2; the noise by
    `accounting.gaussian_mu`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        row_norm: float = 1.0,
        failure: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.y_range = y_range
        self.row_norm = row_norm
        self.failure = failure
        self.random_state = random_state

    def _check_parameters(self) -> None:
        if not (isinstance(self.row_norm, int | float) and 0 < self.row_norm < math.inf):
            raise InputError(
                f"row_norm is {self.row_norm!r}: declare the largest possible length of a row (x, 1), above 0"
            )
        if not (isinstance(self.failure, int | float) and 0 < self.failure < 1):
            raise InputError(f"failure is {self.failure!r}: pass a probability between 0 and 1")

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " d"], float]:
        rows = np.column_stack([X, np.ones(len(X))])
        lengths = np.linalg.norm(rows, axis=1)
        rows *= np.minimum(1.0, self.row_norm / lengths)[:, None]
        k = rows.shape[1]
        # Three releases with equal shares of mu^2; t is within [-1, 1].
        share = gaussian_mu(self.epsilon, self.delta) / math.sqrt(3)
        gram_noise, moment_noise = self.row_norm**2 / share, self.row_norm / share
        gram = rows.T @ rows
        smallest = float(np.linalg.eigvalsh(gram)[0]) + gram_noise * (
            rng.standard_normal() - float(norm.isf(self.failure))
        )
        upper = np.triu(rng.standard_normal((k, k)))
        noisy_gram = gram + gram_noise * (upper + np.triu(upper, 1).T)
        noisy_moments = rows.T @ t + moment_noise * rng.standard_normal(k)
        wanted = gram_noise * math.sqrt(k * math.log(2 * k**2 / self.failure))
        penalty = max(0.0, wanted - max(smallest, 0.0))
        weights = np.linalg.lstsq(noisy_gram + penalty * np.eye(k), noisy_moments, rcond=None)[0]
        self.privacy_ = PrivacyReport(
            mechanism="Gaussian releases of X^T X, its smallest eigenvalue, and X^T y",
            adjacency="add_remove",
            epsilon={"add_remove": float(self.epsilon)},
            delta=self.delta,
            public=("the largest row length", "the y-range", "the hyper-parameters"),
            notes=self._seed_notes(),
        )
        return weights[:-1], float(weights[-1])
