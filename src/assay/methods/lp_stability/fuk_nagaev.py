"""The truncation bound sharpened by moments: a Fuk-Nagaev inequality with numerically optimised constants.

Bennett's inequality, applied to differences truncated at y, allows all of the variance to sit at y. Moments
of order p > 2 forbid that: little of it does. With phi(u) = exp(u) - 1 - u, a second level w < y and t > 0,

    exp(t D) <= 1 + t D + phi(t |D|),
    phi(t |D|) <= D^2 phi(t w) / w^2                           where h <= w,
    phi(t |D|) <= h^p max(phi(t w) / w^p, phi(t y) / y^p)      where w < h <= y,

the last because phi(u) / u^p first falls and then rises. In the notation of `truncation`, Chernoff's bound
gives for all t > 0 and w < y with T(y) < delta a distance that f - Ef exceeds with probability delta at most,

    z = b(y) + (1/t) [log(sided / (delta - T(y))) + V phi(t w) / w^2
                      + S_p max(phi(t w) / w^p, phi(t y) / y^p)].

Its least value is the radius. At the optimum the two ratios in the maximum are equal: for a given t a larger
y only helps until the second ratio overtakes the first, and from there on a smaller w only helps until the
first is back at the second. So w follows from t y, and a search over y and t y remains.

The proof of Theorem 2.2 of Lei, Bonnerjee, Han and Wu (2026) amounts to the choice y = p z / (4 (p + 2)) and
t w = p, so that its radius is never below this one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from assay.methods.lp_stability import truncation
from assay.methods.lp_stability.truncation import Array, Scaled, TruncationSums

# phi(u) = u^2 / 2 (1 + u / 3 + ...) below; the closed form loses digits there.
SERIES_BELOW = 1e-3
# exp(u) - 1 - u is exp(u) to double precision above, and soon overflows.
LARGE = 600.0
# w need not be exact: two steps of Newton's method cost less than 1e-8 of the radius.
NEWTON_STEPS = 2
# Where the search starts, in two coordinates. The depth sets y: the logit of T(y) / delta is -p times it, so
# that it grows like log y where T(y) is small. The rise is the logarithm of the distance of log(t y) from the
# turning point of phi(u) / u^p.
DEPTHS = np.array([0.2, 0.9, 1.8, 3.5, 6.5])
RISES = np.array([-4.0, -3.0, -2.0, -1.0, 0.0, 1.0])
FIRST_STEPS = np.array([0.6, 0.5])
SEARCHES = 40
SMALLEST_STENCIL = 3e-5
# Confidence levels of the inversion: log delta from here up to 0.
LEAST_LOG_DELTA = -300.0
INVERSION_POINTS = 48
INVERSION_ZOOMS = 7


def moment_radius(delta: Array, sums: TruncationSums, sided: int = 1) -> tuple[Array, Array]:
    """The least z of the above and of Bennett's form, and the level y that attains it.

    Args:
        delta: error probabilities in (0, 1).
        sums: broadcast against `delta`.
        sided: 1 for f - Ef, 2 for |f - Ef|.

    Returns:
        Radii and truncation levels, of the broadcast shape. Infinite where the moments are.
    """
    value, level = truncation.bennett_moment_radius(delta, sums, sided)
    scaled, delta = truncation.scale(sums, delta)
    rows = np.flatnonzero((scaled.p > 2) & np.isfinite(value) & (value > 0))
    flat_value, flat_level = np.array(value).ravel(), np.array(level).ravel()
    if rows.size:
        part, confidence = scaled.rows(rows), delta.ravel()[rows]
        sharper, logit = _two_level_radius(confidence, part, sided)
        better = part.unit * sharper < flat_value[rows]
        flat_level[rows[better]] = (part.unit * part.level(confidence, logit))[better]
        flat_value[rows] = np.minimum(flat_value[rows], part.unit * sharper)
    return flat_value.reshape(scaled.p.shape), flat_level.reshape(scaled.p.shape)


def moment_log_tail(z: float, sums: TruncationSums, sided: int = 1) -> float:
    """log of an upper bound of the tail probability at z > 0, at most 0: the inverse of the least radius.

    Found by ever finer grids of delta; the upper end of the last one is returned, whose radius is at most z.

    Args:
        z: distance.
        sums: at one order or, as vectors, at several; the best order counts.
        sided: 1 for f - Ef, 2 for |f - Ef|.
    """
    orders = TruncationSums(*(np.atleast_1d(np.float64(field)) for field in sums))
    lower, upper = LEAST_LOG_DELTA, -1e-12
    for _ in range(INVERSION_ZOOMS):
        grid = np.linspace(lower, upper, INVERSION_POINTS)
        radii, _ = moment_radius(np.exp(grid)[:, None], orders, sided)
        reached = np.flatnonzero(np.min(radii, axis=1) <= z)
        if reached.size == 0:
            return 0.0 if upper == -1e-12 else upper
        first = int(reached[0])
        lower, upper = float(grid[max(first - 1, 0)]), float(grid[first])
    return upper


def log_phi(x: Array) -> Array:
    """log(exp(u) - 1 - u) at u = exp(x)."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        u = np.exp(x)
        closed = np.log(np.expm1(u) - u)
    return np.where(u < SERIES_BELOW, 2 * x - np.log(2) + u / 3, np.where(u > LARGE, u, closed))


def _slope(x: Array) -> Array:
    """d log phi / d log u = u phi'(u) / phi(u), which rises from 2."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = np.exp(x)
        closed = u * np.expm1(u) / (np.expm1(u) - u)
    return np.where(u < SERIES_BELOW, 2 + u / 3, np.where(u > LARGE, u, closed))


def turning_point(p: np.ndarray) -> np.ndarray:
    """log of the u at which phi(u) / u^p is least, p > 2: the root of u phi'(u) = p phi(u), just below p."""
    # u phi' / phi = u + u^2 / phi lies between max(u, 2) and u + 2, so the root between p - 2 and p.
    lower, upper = np.log(np.maximum(p - 2, 1e-12)), np.log(p)
    for _ in range(30):
        middle = 0.5 * (lower + upper)
        below = _slope(middle) < p
        lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
    return upper


def _lower_level(x: Array, p: Array) -> Array:
    """log(t w) with phi(u) / u^p equal at t w and t y = exp(x), on the falling branch (or close below).

    Newton's method on log phi, which is convex in log u, started from phi(u) >= u^2 / 2: it ascends to the
    root.
    """
    target = log_phi(x) - p * x
    lower = np.minimum(-(target + np.log(2)) / (p - 2), x)
    for _ in range(NEWTON_STEPS):
        excess = log_phi(lower) - p * lower - target
        lower = np.minimum(lower + excess / np.maximum(p - _slope(lower), 1e-9), x)
    return lower


def _two_level_radius(delta: np.ndarray, scaled: Scaled, sided: int) -> tuple[np.ndarray, np.ndarray]:
    """Radii in units of M_p^(1/p), and the logit of T(y) / delta at each."""
    turn = turning_point(scaled.p)

    def log_distance(depth: np.ndarray, rise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        p, _, shift, variance = part = scaled.rows(rows)
        logit = -p * depth
        log_y = part.log_level(delta[rows], logit)
        x = turn[rows] + np.exp(rise)
        low = _lower_level(x, p)
        log_phi_low = log_phi(low)
        ratio = np.maximum(log_phi_low - p * low, log_phi(x) - p * x)
        exponent = np.log(sided / delta[rows]) + np.logaddexp(0.0, logit)
        with np.errstate(over="ignore"):
            spread = variance * np.exp(2 * (x - log_y - low) + log_phi_low)
            jumps = shift * np.exp(p * (x - log_y) + ratio)
            z = shift * np.exp((1 - p) * log_y) + np.exp(log_y - x) * (exponent + spread + jumps)
            return np.where(np.isnan(z), np.inf, np.log(z))

    point, least = _descend(log_distance, turn.size)
    return np.exp(least), -scaled.p * point[0]


def _descend(
    objective: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], n: int
) -> tuple[Float[np.ndarray, "2 n"], Float[np.ndarray, " n"]]:
    """Elementwise minimum of n functions of two variables, by Newton's method on a shrinking stencil.

    Every value that is evaluated is a valid bound, so that only tightness rests on convergence.

    Args:
        objective: values at (first, second) of the functions with the given numbers, along the last axis.
    """
    active = np.arange(n)
    first, second = (part.ravel()[:, None] for part in np.meshgrid(DEPTHS, RISES))
    values = objective(first, second, active)
    best = np.argmin(values, axis=0)
    point, least = np.stack([first[best, 0], second[best, 0]]), np.min(values, axis=0)
    offsets = np.array([(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)], dtype=float)[:, :, None]
    size = np.ones(n)
    for _ in range(SEARCHES):
        step = FIRST_STEPS[:, None] * size[active]
        around = point[None, :, active] + offsets * step
        values = objective(around[:, 0], around[:, 1], active)
        newton = np.clip(_newton_step(values), -4.0, 4.0)
        around = np.concatenate([around, around[4:5] + step * newton])
        values = np.concatenate([values, objective(around[9:, 0], around[9:, 1], active)])
        best, column = np.argmin(values, axis=0), np.arange(active.size)
        point[:, active], least[active] = around[best, :, column].T, values[best, column]
        # The stencil shrinks once the minimum lies within it.
        close = (best == 9) & (np.abs(newton).max(axis=0) < 0.5)
        size[active] *= np.where(best == 4, 0.5, np.where(close, 0.7, 1.0))
        active = active[size[active] > SMALLEST_STENCIL]
        if active.size == 0:
            break
    return point, least


def _newton_step(values: Float[np.ndarray, "9 n"]) -> Float[np.ndarray, "2 n"]:
    """Newton's step, in stencil units, from the values on the 3 x 3 stencil; zero unless they are convex."""
    grid = values.reshape(3, 3, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gradient = np.stack([grid[2, 1] - grid[0, 1], grid[1, 2] - grid[1, 0]]) / 2
        first = grid[2, 1] - 2 * grid[1, 1] + grid[0, 1]
        second = grid[1, 2] - 2 * grid[1, 1] + grid[1, 0]
        mixed = (grid[2, 2] - grid[2, 0] - grid[0, 2] + grid[0, 0]) / 4
        determinant = first * second - mixed**2
        step = np.stack(
            [mixed * gradient[1] - second * gradient[0], mixed * gradient[0] - first * gradient[1]]
        )
        step = step / determinant
    convex = (determinant > 0) & (first > 0) & np.isfinite(step).all(axis=0)
    return np.where(convex, step, 0.0)
