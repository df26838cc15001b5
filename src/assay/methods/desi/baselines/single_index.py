"""The two single-index Fréchet regressions from before DeSI: FSI and IFR."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize

from assay.errors import InputError
from assay.methods.desi.base import FrechetRegressor, check_number, check_whole, coordinates
from assay.methods.desi.index_model import oriented, starting_directions
from assay.methods.desi.smoother import IndexSmoother
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.weights import local_linear_weights


class SingleIndexRegressor(FrechetRegressor):
    """A direction, a bandwidth, and local Fréchet regression on the index.

    A subclass finds direction and bandwidth in `_search(X, Y)`.

    Attributes:
        direction_: for standardised predictors, of length one, its first coordinate that is not zero
            positive; constant predictors have the coordinate zero.
        coef_: the direction for predictors in their own units, not normalised.
        bandwidth_: in units of the index.
    """

    def _search(
        self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]
    ) -> tuple[Float[np.ndarray, " p"], float]:
        raise NotImplementedError

    def _fit(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        direction, self.bandwidth_ = self._search(X, Y)
        used = self.scale_ > 0
        self.direction_ = np.zeros(len(used))
        self.direction_[used] = oriented(direction)
        self.coef_ = np.zeros(len(used))
        self.coef_[used] = self.direction_[used] / self.scale_[used]
        z = self._index(X)
        order = np.argsort(z, kind="stable")
        self.smoother_ = IndexSmoother(self.space, z[order], Y[order], self.bandwidth_)

    def _predict(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m ..."]:
        return self.smoother_.predict(self._index(X))

    def _index(self, X: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " m"]:
        return np.einsum("ij,j->i", X, self.direction_[self.scale_ > 0])


class FrechetSingleIndex(SingleIndexRegressor):
    """Fréchet single-index regression (FSI): least squares over the direction by Nelder-Mead in polar
    coordinates.

    For every candidate bandwidth the direction minimises the mean of d^2(Y_i, m(theta' x_i)), where m is
    fitted to all rows; the bandwidth with the smallest leave-one-out error, at its own direction, is kept.

    Args:
        space: the metric space of the responses.
        bandwidth: `"cv"`, or a fixed one in units of the index.
        n_bandwidths: candidates, from half of to three times the rule of thumb n^(-1/5).
        n_starts: directions to start from: those of the first and second moments, and random ones.
        max_evaluations: of the criterion, for every start.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        direction_, bandwidth_: see `SingleIndexRegressor`.
        criterion_: the criterion at the direction.

    Source: Ghosal, Meiring and Petersen (2023), Fréchet single index models for object response regression.
    """

    def __init__(
        self,
        space: MetricSpace,
        bandwidth: Literal["cv"] | float = "cv",
        n_bandwidths: int = 4,
        n_starts: int = 4,
        max_evaluations: int = 200,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.bandwidth = bandwidth
        self.n_bandwidths = n_bandwidths
        self.n_starts = n_starts
        self.max_evaluations = max_evaluations
        self.random_state = random_state

    def _check_parameters(self) -> None:
        if self.bandwidth != "cv":
            check_number(self, "bandwidth", above=0)
        check_whole(self, "n_bandwidths", "n_starts", "max_evaluations")

    def _search(
        self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]
    ) -> tuple[Float[np.ndarray, " p"], float]:
        rng = self._generator()
        responses = coordinates(self.space, Y)
        starts = starting_directions(X, responses, max(0, self.n_starts - 2), rng)[: self.n_starts]
        fits = []
        for bandwidth in _candidates(self.bandwidth, len(X), self.n_bandwidths):
            value, direction = min(
                (self._minimise(X, Y, bandwidth, start) for start in starts), key=lambda fit: fit[0]
            )
            fits.append(
                (leave_one_out_error(self.space, X @ direction, Y, bandwidth), value, direction, bandwidth)
            )
        _, self.criterion_, direction, bandwidth = min(fits, key=lambda fit: fit[0])
        return direction, bandwidth

    def _minimise(
        self,
        X: Float[np.ndarray, "n p"],
        Y: Float[np.ndarray, "n ..."],
        bandwidth: float,
        start: Float[np.ndarray, " p"],
    ) -> tuple[float, Float[np.ndarray, " p"]]:
        """The smallest criterion that is found from `start`, with its direction."""

        def criterion(angles: Float[np.ndarray, " p-1"]) -> float:
            z = X @ direction_from_angles(angles)
            means = self.space.mean(Y, _weights(z, z, bandwidth))
            return float((self.space.distance(Y, means) ** 2).mean())

        angles = angles_from_direction(start)
        if not angles.size:
            return criterion(angles), start
        # A first simplex of fixed size: SciPy's own is relative, and vanishes at angles near zero.
        simplex = angles + np.vstack([np.zeros_like(angles), 0.3 * np.eye(len(angles))])
        options = {"maxfev": self.max_evaluations, "initial_simplex": simplex, "xatol": 1e-4, "fatol": 1e-8}
        result = minimize(criterion, angles, method="Nelder-Mead", options=options)
        return float(result.fun), direction_from_angles(result.x)


class IndexFrechet(SingleIndexRegressor):
    """Index Fréchet regression (IFR): the best of many random directions by the error of binned responses.

    Along a direction the rows are put into bins of equal size; the criterion is the mean squared distance
    between a bin's Fréchet mean and the local fit, to all rows, at the bin's mean index. The bandwidth is
    chosen by the leave-one-out error of the rows, then the number of bins by that of the bins, both at the
    direction with equal coordinates.

    Args:
        space: the metric space of the responses.
        n_directions: random unit vectors with a positive first coordinate.
        bandwidth: `"cv"`, or a fixed one in units of the index.
        n_bandwidths: candidates, from half of to three times the rule of thumb n^(-1/5).
        n_bins: numbers of bins to choose from; at most half the number of rows is used.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        direction_, bandwidth_: see `SingleIndexRegressor`.
        n_bins_: the number of bins that is used.
        criterion_: the criterion at the direction.

    Source: Bhattacharjee and Müller (2023), Single index Fréchet regression.
    """

    def __init__(
        self,
        space: MetricSpace,
        n_directions: int = 1000,
        bandwidth: Literal["cv"] | float = "cv",
        n_bandwidths: int = 6,
        n_bins: tuple[int, ...] = (15, 20, 30, 50),
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.n_directions = n_directions
        self.bandwidth = bandwidth
        self.n_bandwidths = n_bandwidths
        self.n_bins = n_bins
        self.random_state = random_state

    def _check_parameters(self) -> None:
        if self.bandwidth != "cv":
            check_number(self, "bandwidth", above=0)
        check_whole(self, "n_directions", "n_bandwidths")
        if not len(self.n_bins) or not all(isinstance(bins, Integral) and bins >= 2 for bins in self.n_bins):
            raise InputError(f"n_bins is {self.n_bins!r}: pass whole numbers >= 2")

    def _search(
        self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]
    ) -> tuple[Float[np.ndarray, " p"], float]:
        n, p = X.shape
        directions = self._generator().standard_normal((self.n_directions, p))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        directions[directions[:, 0] < 0] *= -1
        z = X @ np.full(p, p**-0.5)
        candidates = _candidates(self.bandwidth, n, self.n_bandwidths)
        bandwidth = min(candidates, key=lambda h: leave_one_out_error(self.space, z, Y, h))

        def bin_error(bins: int) -> float:
            return leave_one_out_error(self.space, *self._binned(z, Y, bins), bandwidth)

        self.n_bins_ = min(sorted({max(2, min(bins, n // 2)) for bins in self.n_bins}), key=bin_error)
        errors = [self._criterion(X @ direction, Y, bandwidth) for direction in directions]
        self.criterion_ = min(errors)
        return directions[int(np.argmin(errors))], bandwidth

    def _criterion(
        self, z: Float[np.ndarray, " n"], Y: Float[np.ndarray, "n ..."], bandwidth: float
    ) -> float:
        centres, means = self._binned(z, Y, self.n_bins_)
        fitted = self.space.mean(Y, _weights(z, centres, bandwidth))
        return float((self.space.distance(means, fitted) ** 2).mean())

    def _binned(
        self, z: Float[np.ndarray, " n"], Y: Float[np.ndarray, "n ..."], bins: int
    ) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, "bins ..."]]:
        """The mean index and the Fréchet mean of every bin."""
        members = np.zeros((bins, len(z)))
        members[np.arange(len(z)) * bins // len(z), np.argsort(z, kind="stable")] = 1
        members /= members.sum(1, keepdims=True)
        return members @ z, self.space.mean(Y, members)


def leave_one_out_error(
    space: MetricSpace, z: Float[np.ndarray, " n"], Y: Float[np.ndarray, "n ..."], bandwidth: float
) -> float:
    """The mean of d^2(Y_i, m_-i(z_i)) for local Fréchet regression on the index."""
    means = space.mean(Y, _weights(z, z, bandwidth, leave_one_out=True))
    return float((space.distance(Y, means) ** 2).mean())


def direction_from_angles(angles: Float[np.ndarray, " p-1"]) -> Float[np.ndarray, " p"]:
    """The unit vector with these polar coordinates: (cos a1, sin a1 cos a2, ..., sin a1 ... sin a_p-1)."""
    sines = np.concatenate([[1.0], np.cumprod(np.sin(angles))])
    return sines * np.concatenate([np.cos(angles), [1.0]])


def angles_from_direction(direction: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p-1"]:
    """The inverse of `direction_from_angles`: angles in [0, pi], the last one in (-pi, pi]."""
    tails = np.sqrt(np.cumsum(direction[::-1] ** 2))[::-1]
    # The last tail keeps the sign of the last coordinate.
    tails = np.append(tails[1:-1], direction[-1]) if len(direction) > 1 else tails[1:]
    return np.arctan2(tails, direction[:-1])


def _weights(
    z_in: Float[np.ndarray, " n"],
    z_out: Float[np.ndarray, " m"],
    bandwidth: float,
    *,
    leave_one_out: bool = False,
) -> Float[np.ndarray, "m n"]:
    excluded = torch.arange(len(z_in)) if leave_one_out else None
    tensors = torch.from_numpy(z_in), torch.from_numpy(z_out)
    return local_linear_weights(*tensors, bandwidth, excluded=excluded).weights.numpy()


def _candidates(bandwidth: str | float, n: int, count: int) -> list[float]:
    """The given bandwidth, or candidates from half of to three times the rule of thumb n^(-1/5)."""
    if isinstance(bandwidth, Real):
        return [float(bandwidth)]
    return (n**-0.2 * np.geomspace(0.5, 3, count)).tolist()
