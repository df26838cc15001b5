"""Scores: how the values of a code look to a trellis, in closed form over all of its states.

Quantization on a trellis sees more of a code than the distribution of its values. States that follow each
other share bits, and what decides is the joint law of the values in overlapping windows: how well the 2^K
successors of a state cover a Gaussian, and how strongly successive values are tied. That overlap geometry
matters is the paper's diagnosis; the scores are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor

HISTOGRAM_BINS = 16
HISTOGRAM_WINDOWS = 1 << 14


@dataclass(frozen=True)
class Scores:
    """What the values of a code look like to a trellis of one value a state.

    Attributes:
        skewness: of the values over all states.
        excess_kurtosis: of the values over all states; 0 for a Gaussian.
        wasserstein: W1 distance of the values to N(0, 1).
        overlap_correlation: the largest |corr(g(s_t), g(s_{t+d}))| over the lags d at which windows overlap.
        overlap_correlation_squares: the same for the squares of the values.
        branch_spread: mean variance of the successors of a state (unbiased) over the variance of all values;
            1 for independent values, larger when successors avoid each other.
        merge_spread: the same for the predecessors of a prefix.
        branch_coverage: mean squared distance from N(0, 1) to the nearest successor, averaged over branches:
            the distortion of one greedy step.
        branch_coverage_95: its 95th percentile over branches.
        pair_coverage: chi-square over its degrees of freedom of (g(s_t), g(s_{t+1})) in 16 x 16 bins, against
            independence, as for 2^14 windows.
    """

    skewness: float
    excess_kurtosis: float
    wasserstein: float
    overlap_correlation: float
    overlap_correlation_squares: float
    branch_spread: float
    merge_spread: float
    branch_coverage: float
    branch_coverage_95: float
    pair_coverage: float


def score(values: Float[Tensor, " states"], bits: int) -> Scores:
    """The scores of a code with one value a state, standardized, at `bits` bits a weight."""
    code = values.to(torch.float64).numpy()
    code = (code - code.mean()) / code.std()
    branches = code.reshape(-1, 1 << bits)
    coverage = branch_coverage(branches)
    lags = range(1, math.ceil(_window(code) / bits))
    return Scores(
        skewness=float(np.mean(code**3)),
        excess_kurtosis=float(np.mean(code**4) - 3.0),
        wasserstein=wasserstein_to_normal(code),
        overlap_correlation=max((abs(overlap_correlation(code, bits, lag)) for lag in lags), default=0.0),
        overlap_correlation_squares=max(
            (abs(overlap_correlation(code**2, bits, lag)) for lag in lags), default=0.0
        ),
        branch_spread=float(branches.var(axis=1, ddof=1).mean()),
        merge_spread=float(code.reshape(1 << bits, -1).var(axis=0, ddof=1).mean()),
        branch_coverage=float(coverage.mean()),
        branch_coverage_95=float(np.percentile(coverage, 95)),
        pair_coverage=pair_coverage(code, bits),
    )


def wasserstein_to_normal(values: Float[np.ndarray, " n"]) -> float:
    """The exact W1 distance of n equally likely values to N(0, 1): the integral of |quantile difference|."""
    ordered = np.sort(values)
    edges = np.arange(len(ordered) + 1) / len(ordered)
    low, high = edges[:-1], edges[1:]
    # In its cell of probability, a value is above the normal's quantile up to `crossing` and below it after.
    crossing = np.clip(ndtr(ordered), low, high)
    density = _density(ndtri(edges))
    at_crossing = _density(ndtri(crossing))
    above = ordered * (crossing - low) - (density[:-1] - at_crossing)
    below = (at_crossing - density[1:]) - ordered * (high - crossing)
    return float((above + below).sum())


def overlap_correlation(values: Float[np.ndarray, " states"], bits: int, lag: int) -> float:
    """corr(g(s_t), g(s_{t+lag})) over all equally likely windows, exact.

    The two states share the L - lag K bits that are lowest in the first and highest in the second; given
    these, they are independent. So the covariance is that of the two conditional means.
    """
    shared = len(values) >> (bits * lag)
    if shared < 1:
        return 0.0
    centred = values - values.mean()
    earlier = centred.reshape(-1, shared).mean(axis=0)
    later = centred.reshape(shared, -1).mean(axis=1)
    return float(np.mean(earlier * later) / np.mean(centred**2))


def branch_coverage(branches: Float[np.ndarray, "n branches"]) -> Float[np.ndarray, " n"]:
    """E min_c (x - v_c)^2 over x ~ N(0, 1), for every row v, in closed form.

    The cell of a value ends halfway to its neighbours; in a cell (a, b) with P = Phi(b) - Phi(a), the first
    moment is phi(a) - phi(b) and the second P + a phi(a) - b phi(b).
    """
    ordered = np.sort(branches, axis=1)
    middle = 0.5 * (ordered[:, 1:] + ordered[:, :-1])
    infinite = np.full((len(ordered), 1), np.inf)
    edges = np.concatenate([-infinite, middle, infinite], axis=1)
    density = _density(edges)
    # a phi(a) vanishes at both infinities, where a * density would be NaN.
    moment = np.pad(middle * density[:, 1:-1], ((0, 0), (1, 1)))
    probability = np.diff(ndtr(edges), axis=1)
    first = density[:, :-1] - density[:, 1:]
    second = probability + moment[:, :-1] - moment[:, 1:]
    return (second - 2.0 * ordered * first + ordered**2 * probability).sum(axis=1)


@lru_cache
def independent_coverage(branches: int) -> float:
    """What `branch_coverage` is on average for independent Gaussian values, by quadrature.

    E min_c (x - v_c)^2 = int phi(x) int_0^inf 2 r P(|x - v| > r)^branches dr dx.
    """
    x = np.linspace(-8.0, 8.0, 801)[:, None]
    r = np.linspace(0.0, 16.0, 3201)[None, :]
    beyond = ndtr(x - r) + ndtr(-x - r)
    inner = np.trapezoid(2.0 * r * beyond**branches, r, axis=1)
    return float(np.trapezoid(_density(x[:, 0]) * inner, x[:, 0]))


def pair_coverage(values: Float[np.ndarray, " states"], bits: int) -> float:
    """Chi-square over its degrees of freedom of successive values, in bins of equal counts, against
    independence.

    All 2^(L+K) windows are counted. The statistic of a code that is not quite independent grows with their
    number, so it is given as for 2^14 windows where there are more: the excess over 1 is scaled down.
    """
    edges = np.quantile(values, np.arange(1, HISTOGRAM_BINS) / HISTOGRAM_BINS)
    bins = np.searchsorted(edges, values, side="right")
    successors = bins.reshape(-1, 1 << bits)
    # State j + d 2^(L-K) is followed by branch j.
    states = bins.reshape(1 << bits, -1).T
    pairs = HISTOGRAM_BINS * states[:, :, None] + successors[:, None, :]
    counts = np.bincount(pairs.ravel(), minlength=HISTOGRAM_BINS**2).reshape(HISTOGRAM_BINS, HISTOGRAM_BINS)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True) / counts.sum()
    # Coarse codes can leave a bin empty, which then has no degrees of freedom.
    used = expected > 0
    rows, columns = int(used.any(axis=1).sum()), int(used.any(axis=0).sum())
    squares = (counts - expected)[used] ** 2 / expected[used]
    ratio = float(squares.sum()) / max((rows - 1) * (columns - 1), 1)
    return 1.0 + (ratio - 1.0) * min(1.0, HISTOGRAM_WINDOWS / pairs.size)


def _window(values: Float[np.ndarray, " states"]) -> int:
    return len(values).bit_length() - 1


def _density(x: Float[np.ndarray, " *shape"]) -> Float[np.ndarray, " *shape"]:
    return np.exp(-0.5 * np.square(x)) / math.sqrt(2.0 * math.pi)
