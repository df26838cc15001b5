"""Global and local Fréchet regression on all predictors."""

from __future__ import annotations

import math
import warnings
from numbers import Real
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.desi.base import WeightedFrechetRegressor, check_whole
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.weights import Kernel, global_weights, kernel_function, local_linear_weights_nd


class GlobalFrechet(WeightedFrechetRegressor):
    """Global Fréchet regression: linear regression for responses in a metric space. It has no tuning
    parameter.

    Args:
        space: the metric space of the responses.

    Source: Petersen and Müller (2019), Fréchet regression for random objects with Euclidean predictors,
        section 2.
    """

    def __init__(self, space: MetricSpace) -> None:
        self.space = space

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        if X.shape[1] >= len(X):
            warnings.warn(
                f"{X.shape[1]} predictors but {len(X)} rows: the least-norm fit is used, which interpolates",
                stacklevel=4,
            )

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        return global_weights(self._X, X)


class LocalFrechet(WeightedFrechetRegressor):
    """Local Fréchet regression with a product kernel on the standardised predictors.

    It is made for one or two predictors; with more the kernel finds ever fewer neighbours.

    Args:
        space: the metric space of the responses.
        bandwidth: in standard deviations of the predictors, one for all or one for each; `"cv"` chooses among
            `n_bandwidths` common ones by the leave-one-out error.
        kernel: `gauss`, `rect`, `epan`, `quar` or `gausvar`.
        n_bandwidths: candidates, spaced evenly in the logarithm from a third of the rule of thumb n^(-1/(4 +
            p)) to four times it.

    Attributes:
        bandwidth_: the bandwidth that is used.
        cv_errors_: the leave-one-out error, the mean squared distance, of every candidate in
            `cv_bandwidths_`.

    Source: Petersen and Müller (2019), section 3.
    """

    def __init__(
        self,
        space: MetricSpace,
        bandwidth: Literal["cv"] | float | list[float] = "cv",
        kernel: Kernel = "gauss",
        n_bandwidths: int = 10,
    ) -> None:
        self.space = space
        self.bandwidth = bandwidth
        self.kernel: Kernel = kernel
        self.n_bandwidths = n_bandwidths

    def _check_parameters(self) -> None:
        kernel_function(self.kernel)
        check_whole(self, "n_bandwidths")
        if not isinstance(self.bandwidth, str):
            values = np.atleast_1d(np.asarray(self.bandwidth, dtype=np.float64))
            if values.ndim != 1 or not (np.isfinite(values) & (values > 0)).all():
                raise InputError(f"bandwidth is {self.bandwidth!r}: pass 'cv' or positive numbers")
        elif self.bandwidth != "cv":
            raise InputError(f"bandwidth is {self.bandwidth!r}: pass 'cv' or positive numbers")

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        n, p = X.shape
        if isinstance(self.bandwidth, str):
            self.cv_bandwidths_ = bandwidth_candidates(n, p, self.n_bandwidths)
            self.cv_errors_ = np.array([self._leave_one_out_error(h) for h in self.cv_bandwidths_])
            self.bandwidth_ = float(self.cv_bandwidths_[self.cv_errors_.argmin()])
        elif isinstance(self.bandwidth, Real):
            self.bandwidth_ = float(self.bandwidth)
        else:
            self.bandwidth_ = np.asarray(self.bandwidth, dtype=np.float64)
            if len(self.bandwidth_) != p:
                raise InputError(
                    f"bandwidth has {len(self.bandwidth_)} values, but {p} predictors vary: pass one or {p}"
                )

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        return nd_weights(self._X, X, self.bandwidth_, self.kernel)

    def _leave_one_out_error(self, bandwidth: float) -> float:
        weights = nd_weights(self._X, self._X, bandwidth, self.kernel, leave_one_out=True)
        return float((self.space.distance(self._Y, self.space.mean(self._Y, weights)) ** 2).mean())


def bandwidth_candidates(n: int, p: int, count: int) -> Float[np.ndarray, " count"]:
    """Bandwidths for standardised predictors, from a third to four times the rule of thumb n^(-1/(4 + p))."""
    return n ** (-1 / (4 + p)) * np.geomspace(1 / 3, 4, count)


def nd_weights(
    X_in: Float[np.ndarray, "n p"],
    X_out: Float[np.ndarray, "m p"],
    bandwidth: float | Float[np.ndarray, " p"],
    kernel: Kernel = "gauss",
    *,
    leave_one_out: bool = False,
) -> Float[np.ndarray, "m n"]:
    """`local_linear_weights_nd` for arrays, a block of targets at a time."""
    scale = bandwidth if isinstance(bandwidth, float) else torch.from_numpy(np.asarray(bandwidth))
    # The distances take targets x rows x predictors floats.
    size = max(1, math.floor(2**22 / X_in.size))
    blocks = []
    for start in range(0, len(X_out), size):
        stop = min(start + size, len(X_out))
        blocks.append(
            local_linear_weights_nd(
                torch.from_numpy(X_in),
                torch.from_numpy(X_out[start:stop]),
                scale,
                kernel=kernel,
                excluded=torch.arange(start, stop) if leave_one_out else None,
            ).weights.numpy()
        )
    return np.concatenate(blocks)
