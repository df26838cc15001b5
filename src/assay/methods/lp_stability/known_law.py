"""The truncation bound for envelopes whose conditional law is known.

As in `fuk_nagaev`, with phi(u) = exp(u) - 1 - u and levels w < y, but the law itself bounds the part between
the levels. For any upper bound T of the exceedances that does not rise, summation by parts over a grid gives

    sum_i E[phi(t h_i); w < h_i <= y]
        <= phi(t w) T(w) + sum over w <= y_j < y of T(y_j) (phi(t y_(j+1)) - phi(t y_j)).

For fixed t the best w and the best y are found apart from each other, so only a search over t remains.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from assay.methods.lp_stability.truncation import minimise

# Larger arguments of phi are useless: one such difference alone would outweigh any deviation.
LARGEST_ARGUMENT = 600.0
# The rates t that are searched, as logarithms relative to the reciprocal of the standard deviation.
RATES = (-6.0, 9.0)


class TruncationLaw(NamedTuple):
    """What is known of all units together at increasing levels y.

    Attributes:
        y: levels.
        exceedance: T(y) >= sum_i P(h_i > y).
        shift: b(y) >= sum_i E[h_i; h_i > y].
        variance: V(y) >= sum_i Var(D_i 1{h_i <= y} | past).
    """

    y: Float[np.ndarray, " k"]
    exceedance: Float[np.ndarray, " k"]
    shift: Float[np.ndarray, " k"]
    variance: Float[np.ndarray, " k"]


def _exponents(t: np.ndarray, law: TruncationLaw) -> np.ndarray:
    """Bounds of log E exp(t sum of truncated differences) - t b at rates t (r,) and levels y (k,), shape (r,
    k).

    At level c it is the least over a <= c of V phi(t y_a) / y_a^2 + phi(t y_a) T(y_a) - S(a), plus S(c), S
    the running sum of the above.
    """
    argument = np.minimum(t[:, None] * law.y, LARGEST_ARGUMENT)
    phi = np.expm1(argument) - argument
    # Without cancellation where the argument is small.
    phi = np.where(argument < 1e-3, argument**2 * (0.5 + argument / 6), phi)
    exceedance = np.maximum.accumulate(law.exceedance[::-1])[::-1]
    running = np.concatenate(
        [np.zeros((t.size, 1)), np.cumsum(exceedance[:-1] * np.diff(phi, axis=1), axis=1)], axis=1
    )
    with np.errstate(over="ignore", invalid="ignore"):
        below = law.variance * phi / law.y**2 + exceedance * phi - running
    # At w = y nothing is left between the levels.
    bennett = law.variance * phi / law.y**2
    split = np.minimum.accumulate(below, axis=1) + running
    exponent = np.minimum(split, bennett)
    return np.where(t[:, None] * law.y < LARGEST_ARGUMENT, exponent, np.inf)


def _rates(law: TruncationLaw) -> tuple[np.ndarray, np.ndarray]:
    centre = -0.5 * math.log(float(np.min(law.variance)))
    return np.array(centre + RATES[0]), np.array(centre + RATES[1])


def radius(delta: float, law: TruncationLaw, sided: int = 1) -> tuple[float, int | None]:
    """The least z over the rates and the levels where T(y) < delta; and the position of its level.

    Returns:
        (infinity, None) where no level leaves any of delta.
    """
    usable = (law.exceedance < delta) & np.isfinite(law.shift) & np.isfinite(law.variance)
    if not usable.any():
        return math.inf, None
    with np.errstate(divide="ignore", invalid="ignore"):
        confidence = np.where(usable, np.log(sided / (delta - law.exceedance)), np.inf)

    def distances(t: np.ndarray) -> np.ndarray:
        exponent = _exponents(t, law)
        return law.shift + (confidence + exponent) / t[:, None]

    def least(log_t: np.ndarray) -> np.ndarray:
        return np.min(distances(np.exp(np.atleast_1d(log_t))), axis=1)

    log_t, value = minimise(least, *_rates(law))
    position = int(np.argmin(distances(np.exp(np.atleast_1d(log_t)))[0]))
    return float(value), position


def log_tail(z: float, law: TruncationLaw, sided: int = 1) -> float:
    """log of the least T(y) + sided exp(...) over rates and levels, at most 0: the inverse of `radius`."""

    def least(log_t: np.ndarray) -> np.ndarray:
        t = np.exp(np.atleast_1d(log_t))
        exponent = _exponents(t, law)
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = math.log(sided) + exponent - t[:, None] * (z - law.shift)
            total = np.logaddexp(np.log(law.exceedance), rest)
        return np.min(np.where(np.isnan(total), np.inf, total), axis=1)

    _, value = minimise(least, *_rates(law))
    return float(min(0.0, value))
