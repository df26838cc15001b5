"""Moments from draws: envelopes of simulated laws and of data, and how far their moments can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from assay.errors import InputError
from assay.methods.lp_stability.analytic import PairFunction
from assay.methods.lp_stability.concentration import check_delta
from assay.methods.lp_stability.envelopes import Array1

Draw = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]

# Simulated moments of a declared law are raised by this many standard errors, and probabilities to the
# matching one-sided confidence limit (3e-7).
MARGIN = 5.0
CHUNK = 250_000
# A partial mean over fewer draws than this has no trustworthy standard error; the moments bound it instead.
FEWEST_EXCEEDANCES = 1000


class MomentWarning(UserWarning):
    """A moment is used whose existence the data cast doubt on."""


@dataclass(frozen=True)
class DrawnEnvelope:
    """An envelope of which draws of H are known, and perhaps draws of (a bound of) h.

    Attributes:
        pairs: draws of H.
        conditional: draws of h or of something larger; or None.
        provenance: "declared-law" raises every simulated number by five standard errors; "estimated" takes
            sample means as they are, and says nothing of tails.
        independent: how many of the pairs are worth independent ones (all of them, unless pairs share rows).
        orders: moment orders to try.
    """

    pairs: Float[np.ndarray, " N"]
    conditional: Float[np.ndarray, " K"] | None = None
    provenance: Literal["declared-law", "estimated"] = "declared-law"
    independent: int | None = None
    orders: tuple[float, ...] = (2.0, 3.0, 4.0)
    pointwise: bool = True

    bound = math.inf
    subgaussian = math.inf
    subexponential = math.inf

    def __post_init__(self) -> None:
        for field in ("pairs", "conditional"):
            values = getattr(self, field)
            if values is None:
                continue
            values = np.sort(np.asarray(values, dtype=float))
            if values.ndim != 1 or values.size < 2 or not (np.isfinite(values).all() and values[0] >= 0):
                raise InputError(
                    f"{field} has shape {values.shape} and least value {values.min(initial=math.inf)}; at "
                    "least two finite draws >= 0 are needed"
                )
            object.__setattr__(self, field, values)

    def log_moments(self, p: float) -> float:
        return self._log_moment(self.pairs, p)

    def log_conditional_moments(self, p: float) -> float:
        if self.conditional is None:
            return self.log_moments(p)
        return min(self.log_moments(p), self._log_moment(self.conditional, p))

    def _log_moment(self, values: Array1, p: float) -> float:
        largest = float(values[-1])
        if largest == 0:
            return -math.inf
        powers = (values / largest) ** p
        mean = float(powers.mean())
        if self.provenance == "declared-law":
            mean += MARGIN * float(powers.std(ddof=1)) / math.sqrt(values.size)
        return p * math.log(largest) + math.log(mean)

    def tail(self, y: Array1) -> tuple[Array1, Array1] | None:
        """Upper confidence limits from the draws of h, or what the moments imply where that is less."""
        if self.provenance != "declared-law" or self.conditional is None:
            return None
        y, h = np.asarray(y, dtype=float), self.conditional
        below = np.searchsorted(h, y, side="right")
        beyond = h.size - below
        limit = stats.beta.isf(stats.norm.sf(MARGIN), beyond + 1, np.maximum(below, 1))
        exceedance = np.where(below > 0, limit, 1.0)
        first, second = (
            np.concatenate([np.cumsum((h**k)[::-1])[::-1], [0.0]])[below] / h.size for k in (1, 2)
        )
        shift = first + MARGIN * np.sqrt(np.maximum(second - first**2, 0.0) / h.size)
        shift = np.where(beyond >= FEWEST_EXCEEDANCES, shift, math.inf)
        with np.errstate(divide="ignore", over="ignore"):
            log_y = np.log(y)
            for p in self.orders:
                log_moment = self.log_conditional_moments(p)
                exceedance = np.minimum(exceedance, np.exp(log_moment - p * log_y))
                shift = np.minimum(shift, np.exp(log_moment - (p - 1) * log_y))
        return exceedance, shift

    def sample(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        """`n` of the draws, with replacement."""
        return rng.choice(self.pairs, size=n)


def law_envelope(
    function: PairFunction,
    draw: Draw,
    *,
    n_draws: int = 1_000_000,
    seed: int = 0,
    orders: tuple[float, ...] = (2.0, 3.0, 4.0),
) -> DrawnEnvelope:
    """The envelope of a declared law of rows, by simulation with an upper margin of five standard errors.

    The margin protects against simulation noise in moments whose doubles exist; choose `orders` below half of
    the tail index of H to be sure of it.

    Args:
        function: H of two rows.
        draw: (n, rng) -> X (n, d) and y (n,), independent rows.
        n_draws: pairs to simulate.
        seed: of the simulation.
        orders: moment orders to use.
    """
    if n_draws < 2 * FEWEST_EXCEEDANCES:
        raise InputError(f"n_draws is {n_draws}; at least {2 * FEWEST_EXCEEDANCES} pairs are needed")
    rng = np.random.default_rng(seed)
    pairs, shares = [], []
    for start in range(0, n_draws, CHUNK):
        n = min(CHUNK, n_draws - start)
        (X, y), (X_swap, y_swap) = draw(n, rng), draw(n, rng)
        pairs.append(function(X, y, X_swap, y_swap))
        shares += [function.row_share(X, y), function.row_share(X_swap, y_swap)]
    share = np.concatenate(shares)
    mean = share.mean() + MARGIN * share.std(ddof=1) / math.sqrt(share.size)
    return DrawnEnvelope(np.concatenate(pairs), share + mean, "declared-law", orders=orders)


def pair_envelope(
    function: PairFunction,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    *,
    n_shuffles: int = 100,
    seed: int = 0,
    orders: tuple[float, ...] = (2.0, 3.0, 4.0),
) -> DrawnEnvelope:
    """The envelope's sample moments over pairs of the given rows: an estimate.

    Args:
        function: H of two rows.
        X, y: rows, independent draws of one law.
        n_shuffles: how often the rows are shuffled and paired up.
        seed: of the shuffles.
        orders: moment orders to use.
    """
    first, second = disjoint_pairs(len(y), n_shuffles, np.random.default_rng(seed))
    values = [function(X[i], y[i], X[j], y[j]) for i, j in zip(first, second, strict=True)]
    share = function.row_share(X, y)
    return DrawnEnvelope(
        np.concatenate(values),
        share + share.mean(),
        provenance="estimated",
        independent=first.shape[1],
        orders=orders,
    )


def disjoint_pairs(
    m: int, n_shuffles: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "n_shuffles half"], Int[np.ndarray, "n_shuffles half"]]:
    """Row numbers of the pairs of several shuffles; within a shuffle no row occurs twice.

    The mean over all these pairs is a mean of means of floor(m / 2) independent pairs each, so by convexity
    it has at most the variance and the exponential moments of one of them. Pairs drawn at random would share
    rows and have no such guarantee.

    Raises:
        InputError: there are fewer than four rows, or no shuffle.
    """
    if m < 4:
        raise InputError(f"there are {m} rows; at least 4 are needed for two disjoint pairs")
    if n_shuffles < 1:
        raise InputError(f"n_shuffles is {n_shuffles}; at least one is needed")
    order = rng.permuted(np.tile(np.arange(m), (n_shuffles, 1)), axis=1)[:, : m // 2 * 2]
    return order[:, 0::2], order[:, 1::2]


def hill_index(values: Float[np.ndarray, " n"], k: int | None = None) -> float:
    """Hill's (1975) estimate of the tail index: moments of lower order exist.

    Args:
        values: a sample; only the positive values count.
        k: number of upper order statistics; n^(2/3), the rate of the usual asymptotic choice, if not given.

    Returns:
        The index; infinite where the k largest values are all equal.

    Raises:
        InputError: `k` is not between 1 and the number of positive values minus one.
    """
    positive = np.sort(np.asarray(values, dtype=float))[::-1]
    positive = positive[positive > 0]
    if k is None:
        k = max(2, math.floor(positive.size ** (2 / 3)))
    if not 1 <= k < positive.size:
        raise InputError(
            f"k is {k}; it lies between 1 and {positive.size - 1}, one less than the positive values"
        )
    mean_excess = float(np.mean(np.log(positive[:k] / positive[k])))
    return 1 / mean_excess if mean_excess > 0 else math.inf


def norm_interval(
    values: Float[np.ndarray, " n"],
    p: float,
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """The sample's L_p norm with its percentile bootstrap interval.

    Args:
        values: a sample; absolute values are taken.
        p: order, positive.
        confidence: of the interval.
        n_resamples: bootstrap samples.
        seed: of the bootstrap.

    Returns:
        The norm, and the ends of the interval.

    Raises:
        InputError: the sample is empty, not finite, or `p` is not positive.
    """
    sizes = np.abs(np.asarray(values, dtype=float))
    if sizes.ndim != 1 or sizes.size == 0 or not np.isfinite(sizes).all():
        raise InputError(f"values has shape {sizes.shape}; a non-empty finite sample is needed")
    if not 0 < p < math.inf:
        raise InputError(f"p is {p!r}; the order is a positive finite number")
    alpha = check_delta(1 - confidence, "1 - confidence")
    largest = float(sizes.max())
    if largest == 0:
        return 0.0, 0.0, 0.0
    powers = (sizes / largest) ** p
    # A resample is a multinomial count of the values.
    counts = np.random.default_rng(seed).multinomial(
        sizes.size, np.full(sizes.size, 1 / sizes.size), size=n_resamples
    )
    norms = largest * (counts @ powers / sizes.size) ** (1 / p)
    low, high = np.quantile(norms, [alpha / 2, 1 - alpha / 2])
    return largest * float(powers.mean()) ** (1 / p), float(low), float(high)


def inflate_moment(mean: float, n_independent: int, kappa: float, delta: float) -> float:
    """An upper bound of E H^p from a sample mean of H^p, when E H^(2p) <= kappa (E H^p)^2 is declared.

    With N independent pairs, P(mean <= (1 - t) E H^p) is at most (kappa - 1) / (kappa - 1 + N t^2) by
    Cantelli's inequality and at most exp(-N t^2 / (2 kappa)) because H^p is not negative. The bound is mean /
    (1 - t) with the least t for which one of the two is delta. Every moment that is estimated costs its own
    delta.

    Args:
        mean: sample mean of H^p.
        n_independent: N; for pairs that share rows the number of disjoint ones (see `disjoint_pairs`).
        kappa: at least 1.
        delta: probability with which the bound may fail.

    Returns:
        The bound; infinite where N is too small for one.

    Raises:
        InputError: a value is out of range.
    """
    check_delta(delta)
    if not (mean >= 0 and math.isfinite(mean)):
        raise InputError(f"mean is {mean!r}; a sample moment is a finite number >= 0")
    if not (isinstance(n_independent, int | np.integer) and n_independent >= 1):
        raise InputError(f"n_independent is {n_independent!r}; it is an integer >= 1")
    if not 1 <= kappa < math.inf:
        raise InputError(f"kappa is {kappa!r}; E H^(2p) is never below (E H^p)^2, so kappa is at least 1")
    cantelli = math.sqrt((kappa - 1) * (1 - delta) / (n_independent * delta))
    exponential = math.sqrt(2 * kappa * math.log(1 / delta) / n_independent)
    shortfall = min(cantelli, exponential)
    return mean / (1 - shortfall) if shortfall < 1 else math.inf
