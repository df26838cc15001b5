"""The truncation bound with numerically optimised constants, vectorised.

For independent units with envelopes H_i, conditional means h_i(x) = E[H_i(x, X_i')] and a level y > 0, let

    T(y) = sum_i P(h_i > y),   b(y) = sum_i E[h_i; h_i > y],   V >= sum_i Var(D_i | past),

D_i the Doob differences of f, |D_i| <= h_i. Off an event of probability T(y) all D_i equal their truncations
at y, whose conditional means add up to at most b(y), so Bennett's inequality for martingales gives, for
z > b(y),

    P(f - Ef >= z) <= T(y) + exp(-(V / y^2) hB((z - b(y)) y / V)),   hB(u) = (1 + u) log(1 + u) - u,

and the same with 2 exp(...) for |f - Ef|. It holds for every y, so the least value over y is a bound too.
Solving for z at fixed y is explicit (`bennett_inverse`), so that a radius needs no root-finding in z.

The variance: D_i = E[g(X_i) - g(X_i')] over the copy, with |g(x) - g(x')| <= H_i(x, x'), hence
Var(D_i | past) = E(g - g')^2 / 2 <= E H_i^2 / 2. Where E H_i^2 is infinite, the bound
E[D_i^2; h_i <= y] <= y^(2-p) E h_i^p with 1 < p < 2 takes its place: laws without variance are covered too.

This form serves at orders up to 2; `fuk_nagaev` makes more of higher moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Array = Float[np.ndarray, "*batch"] | float

# Below, six terms of the series are exact to double precision; at this u the closed form still has 12 digits.
SERIES_BELOW = 1e-3
NEWTON_STEPS = 7
# The last grid is finer than 1e-4 of the argument, hence than 1e-8 of the value, which is flat at its least.
GRID_POINTS = 64
ZOOM_POINTS = 17
ZOOMS = 5


def bennett(u: Array) -> Array:
    """hB(u) = (1 + u) log(1 + u) - u for u >= 0, without cancellation near zero."""
    u = np.asarray(u, dtype=float)
    with np.errstate(invalid="ignore", over="ignore"):
        series = u * u * (1 / 2 + u * (-1 / 6 + u * (1 / 12 + u * (-1 / 20 + u * (1 / 30 - u / 42)))))
        closed = (1 + u) * np.log1p(u) - u
    return np.where(u < SERIES_BELOW, series, closed)


def bennett_inverse(a: Array) -> Array:
    """The u >= 0 with hB(u) = a.

    Newton's method from the right: hB is convex and hB(u) >= u^2 / (2 + 2u/3), so the inverse of the latter
    starts it at or beyond the root, from where it descends monotonically (relative error below 1e-14 after
    seven steps).
    """
    a = np.asarray(a, dtype=float)
    u = a / 3 + np.sqrt(a) * np.sqrt(a / 9 + 2)
    for _ in range(NEWTON_STEPS):
        with np.errstate(invalid="ignore", divide="ignore"):
            step = (bennett(u) - a) / np.log1p(u)
        u = np.where(u == 0, 0.0, u - step)
    return u


def chernoff_distance(y: Array, variance: Array, exponent: Array) -> Array:
    """The x with (V / y^2) hB(x y / V) = exponent: how far truncated differences stray from their mean."""
    with np.errstate(over="ignore"):
        return variance / y * bennett_inverse(exponent * y * y / variance)


class TruncationSums(NamedTuple):
    """What the truncation bound knows of a martingale's differences through their moments of order p.

    For independent units all three come from sums over the units. For draws without replacement the
    conditional quantities need their worst case over the past, hence two sums of order p.

    Attributes:
        p: order of the moments, above 1.
        log_tail: log of M_p >= sum_i E h_i^p, so that T(y) <= M_p / y^p.
        log_shift: log of S_p >= sum_i sup E[h_i^p | past], so that b(y) <= S_p / y^(p-1).
        variance: V >= sum_i sup Var(D_i | past); infinite where unknown, then p must be below 2.
    """

    p: Array
    log_tail: Array
    log_shift: Array
    variance: Array


class Scaled(NamedTuple):
    """`TruncationSums` in units of M_p^(1/p): T(r) = r^-p, b(r) = shift r^(1-p)."""

    p: np.ndarray
    unit: np.ndarray
    shift: np.ndarray
    variance: np.ndarray

    def rows(self, rows: np.ndarray) -> Scaled:
        """Those of the flattened problems."""
        return Scaled(*(field.ravel()[rows] for field in self))

    def log_level(self, delta: Array, logit: Array) -> np.ndarray:
        """log of the level r at which T(r) takes the share expit(logit) of delta."""
        return -(np.log(delta) - np.logaddexp(0.0, -logit)) / self.p

    def level(self, delta: Array, logit: Array) -> np.ndarray:
        """The level r at which T(r) takes the share expit(logit) of delta."""
        return np.exp(self.log_level(delta, logit))

    def variance_at(self, r: Array) -> Array:
        with np.errstate(over="ignore"):
            truncated = self.shift * r ** np.maximum(2 - self.p, 0)
        return np.where(self.p < 2, np.minimum(self.variance, truncated), self.variance)


def scale(sums: TruncationSums, other: Array) -> tuple[Scaled, np.ndarray]:
    p, log_tail, log_shift, variance, other = np.broadcast_arrays(*map(np.float64, (*sums, other)))
    unit = np.exp(log_tail / p)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A zero or infinite unit is dealt with by the callers; any positive number keeps the arithmetic
        # quiet.
        safe = np.where((unit > 0) & np.isfinite(unit), unit, 1.0)
        shift = np.where(np.isfinite(log_tail), np.exp(log_shift - log_tail), 1.0)
        relative = np.maximum(variance / safe / safe, np.finfo(float).tiny)
    return Scaled(p, unit, shift, relative), other


def minimise(
    objective: Callable[[np.ndarray], np.ndarray], lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Arguments and values of the least `objective` on [lower, upper], elementwise.

    A grid finds the valley, ever finer grids around the best point its floor; few calls on large arrays suit
    one radius and ten thousand alike. The bounds hold at every argument, so that a missed global minimum
    would cost tightness only, never validity.
    """
    points = GRID_POINTS
    for zoom in range(ZOOMS + 1):
        steps = np.linspace(0.0, 1.0, points).reshape(-1, *([1] * np.ndim(lower)))
        grid = lower + (upper - lower) * steps
        values = objective(grid)
        # What overflows bounds nothing.
        values = np.where(np.isnan(values), np.inf, values)
        best = np.argmin(values, axis=0, keepdims=True)
        if zoom == ZOOMS:
            break
        lower = np.take_along_axis(grid, np.maximum(best - 1, 0), axis=0)[0]
        upper = np.take_along_axis(grid, np.minimum(best + 1, points - 1), axis=0)[0]
        points = ZOOM_POINTS
    return np.take_along_axis(grid, best, axis=0)[0], np.take_along_axis(values, best, axis=0)[0]


def bennett_moment_radius(delta: Array, sums: TruncationSums, sided: int = 1) -> tuple[Array, Array]:
    """The least z over y with T(y) + sided exp(...) = delta, from moments; and the y that attains it.

    Args:
        delta: error probabilities in (0, 1).
        sums: broadcast against `delta`.
        sided: 1 for f - Ef, 2 for |f - Ef|.

    Returns:
        Radii and truncation levels, of the broadcast shape. Infinite where the moments are.
    """
    scaled, delta = scale(sums, delta)
    p = scaled.p

    def distance(logit: np.ndarray) -> np.ndarray:
        r = scaled.level(delta, logit)
        exponent = np.log(sided / delta) + np.logaddexp(0.0, logit)
        return scaled.shift * r ** (1 - p) + chernoff_distance(r, scaled.variance_at(r), exponent)

    logit, least = minimise(distance, np.full(p.shape, -40.0), np.full(p.shape, 25.0))
    with np.errstate(over="ignore"):
        return _with_limits(scaled, least), scaled.unit * scaled.level(delta, logit)


def _with_limits(scaled: Scaled, least: Array) -> Array:
    unknown = ~np.isfinite(scaled.unit) | (np.isinf(scaled.variance) & (scaled.p >= 2))
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.where(scaled.unit == 0, 0.0, scaled.unit * least)
    return np.where(unknown | np.isnan(value), np.inf, value)


def bennett_radius(delta: Array, bound: Array, variance: Array, sided: int = 1) -> Array:
    """Radius when h_i <= bound almost surely: Bennett's inequality with variance V, no truncation needed."""
    return chernoff_distance(np.float64(bound), np.float64(variance), np.log(sided / np.float64(delta)))


def bennett_log_tail(z: Array, bound: Array, variance: Array, sided: int = 1) -> Array:
    """log min(1, sided exp(-(V / c^2) hB(z c / V)))."""
    z, bound, variance = map(np.float64, (z, bound, variance))
    return np.minimum(0.0, np.log(sided) - variance / bound**2 * bennett(z * bound / variance))
