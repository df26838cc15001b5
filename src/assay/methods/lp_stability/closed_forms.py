"""Concentration bounds whose constants are written down, vectorised: radius and log-tail of each.

All take sums over the independent units: M_p = sum_i E H_i^p and M_2 = sum_i E H_i^2 of the pointwise
envelopes, or what the docstring names. Each is two-sided unless it takes `sided`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Float

Array = Float[np.ndarray, "*batch"] | float

BISECTIONS = 60
# Theorem 2.6 holds for every Q >= 1. Beyond a few hundred the term P(H > z / 4Q) exceeds one in all but
# absurd cases.
LOW_P_EXPONENTS = np.geomspace(1.0, 400.0, 160)


def paper_constants(p: Array) -> tuple[Array, Array]:
    """log c1 and c2 of Theorem 2.2 of Lei, Bonnerjee, Han and Wu (2026): c1 = 4 (4 (p+2) / p)^p,
    c2 = 1 / (2 (p+2)^2 e^p)."""
    p = np.asarray(p, dtype=float)
    return np.log(4.0) + p * np.log(4 * (p + 2) / p), np.exp(-p) / (2 * (p + 2) ** 2)


def paper_log_tail(z: Array, p: Array, log_mp: Array, m2: Array) -> Array:
    """log min(1, c1 M_p / z^p + 2 exp(-c2 z^2 / M_2)), p >= 2 (Theorem 2.2)."""
    log_c1, c2 = paper_constants(p)
    with np.errstate(divide="ignore", over="ignore"):
        gaussian = np.log(2.0) - c2 * (z / np.sqrt(m2)) ** 2
    return np.minimum(np.logaddexp(log_c1 + log_mp - p * np.log(z), gaussian), 0.0)


def paper_radius(delta: Array, p: Array, log_mp: Array, m2: Array) -> Array:
    """The z at which Theorem 2.2's bound equals delta."""
    delta, p, log_mp, m2 = np.broadcast_arrays(*map(np.float64, (delta, p, log_mp, m2)))
    log_c1, c2 = paper_constants(p)

    def each_term_at(share: float) -> Array:
        with np.errstate(divide="ignore"):
            polynomial = (log_c1 + log_mp - np.log(share * delta)) / p
            gaussian = 0.5 * (np.log(m2) + np.log(np.log(2 / (share * delta)) / c2))
        return np.maximum(polynomial, gaussian)

    # One term alone reaches delta at the lower end; both are at most delta / 2 at the upper one.
    known = np.isfinite(m2) & (log_mp < np.inf) & (m2 > 0) & (log_mp > -np.inf)
    lower, upper = (np.where(known, each_term_at(share), 0.0) for share in (1.0, 0.5))
    mp, second = np.where(known, log_mp, 0.0), np.where(known, m2, 1.0)
    for _ in range(BISECTIONS):
        middle = 0.5 * (lower + upper)
        above = paper_log_tail(np.exp(middle), p, mp, second) > np.log(delta)
        lower, upper = np.where(above, middle, lower), np.where(above, upper, middle)
    vanishing = (m2 == 0) & (log_mp == -np.inf)
    return np.where(known, np.exp(upper), np.where(vanishing, 0.0, np.inf))


def _low_p_log_tail(log_ratio: Array, p: Array) -> Array:
    """log of the least over Q of (4Q)^p w + 2 (e 4^p Q^(p-1) w)^Q, w = M_p / z^p given as its logarithm."""
    q = LOW_P_EXPONENTS.reshape(-1, *([1] * np.ndim(log_ratio)))
    jump = p * np.log(4 * q) + log_ratio
    rest = np.log(2.0) + q * (1 + p * np.log(4.0) + (p - 1) * np.log(q) + log_ratio)
    return np.minimum(np.min(np.logaddexp(jump, rest), axis=0), 0.0)


def low_p_log_tail(z: Array, p: Array, log_mp: Array) -> Array:
    """Theorem 2.6 (1 < p < 2) with P(H_i > z / 4Q) bounded by Markov's inequality, least over Q >= 1.

    One step of the printed proof, P(|D_i| > y) <= P(H_i > y), is false in general. With h_i = E[H_i | X_i] in
    the place of H_i that step is true and the theorem follows from the truncation bound: at y = z / 4Q and
    with C = M_p / y^p, Bennett's term is (e C / 4Q)^(4Q) exp(-C), at most the printed (e C / Q)^Q. Since
    E h_i^p <= E H_i^p, the moment form computed here is therefore proven.
    """
    return _low_p_log_tail(np.asarray(log_mp - p * np.log(z)), np.asarray(p))


def low_p_radius(delta: Array, p: Array, log_mp: Array) -> Array:
    """The z at which Theorem 2.6's bound, least over Q, equals delta."""
    delta, p, log_mp = np.broadcast_arrays(*map(np.float64, (delta, p, log_mp)))
    # At w = delta / 4^p the first term alone reaches delta, whatever Q; at the lower end Q = 1 attains delta.
    upper = np.log(delta) - p * np.log(4.0)
    lower = upper - np.log(1 + 2 * np.e)
    for _ in range(BISECTIONS):
        middle = 0.5 * (lower + upper)
        below = _low_p_log_tail(middle, p) <= np.log(delta)
        lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
    return np.exp((log_mp - lower) / p)


@lru_cache(maxsize=256)
def von_bahr_esseen_constant(p: float) -> float:
    """The least C with |1 + x|^p <= 1 + p x + C |x|^p for all real x, 1 <= p <= 2.

    Then E|S + X|^p <= E|S|^p + C E|X|^p whenever E[X | S] = 0, which sums up over martingale differences. The
    classical constant is 2 (von Bahr and Esseen 1965); the best one falls from 2 at p = 1 to 1 at p = 2. The
    supremum of (|1 + x|^p - 1 - p x) / |x|^p is attained at some x = -1/v with 0 <= v <= 1 (on the other rays
    the ratio stays below its limit 1 at infinity).
    """

    def ratio(v: np.ndarray) -> np.ndarray:
        return (1 - v) ** p - v**p + p * v ** (p - 1)

    grid = np.concatenate([np.geomspace(1e-300, 1e-3, 4000), np.linspace(1e-3, 1.0, 4000)])
    best = int(np.argmax(ratio(grid)))
    finer = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)], 2001)
    # The margin covers what the last grid misses of a maximum that is flat.
    return float(min(2.0, max(1.0, np.max(ratio(finer))) * (1 + 1e-9)))


def von_bahr_esseen_radius(delta: Array, p: float, log_mp: Array) -> Array:
    """(C_p M_p / delta)^(1/p), M_p = sum_i ||D_i||_p^p, 1 < p <= 2: Markov's inequality on E|f - Ef|^p."""
    return np.exp((np.log(von_bahr_esseen_constant(p)) + log_mp - np.log(delta)) / p)


def von_bahr_esseen_log_tail(z: Array, p: float, log_mp: Array) -> Array:
    """log min(1, C_p M_p / z^p)."""
    return np.minimum(np.log(von_bahr_esseen_constant(p)) + log_mp - p * np.log(z), 0.0)


def chebyshev_radius(delta: Array, variance: Array, sided: int = 1) -> Array:
    """Efron and Stein's Var f <= V = M_2 / 2 with Chebyshev's inequality, or Cantelli's when one-sided."""
    delta = np.float64(delta)
    return np.sqrt(variance / delta) if sided == 2 else np.sqrt(variance * (1 - delta) / delta)


def chebyshev_log_tail(z: Array, variance: Array, sided: int = 1) -> Array:
    """log of V / z^2 (two sides) or of V / (V + z^2) (one side), at most 0."""
    with np.errstate(divide="ignore"):
        log_ratio = np.log(variance) - 2 * np.log(z)
    return np.minimum(log_ratio, 0.0) if sided == 2 else -np.logaddexp(0.0, -log_ratio)


def rio_radius(delta: Array, p: Array, log_norms: Array) -> Array:
    """delta^(-1/p) sqrt((p - 1) sum_i ||D_i||_p^2), p >= 2: Rio's (2009) martingale inequality and Markov's.

    Args:
        log_norms: log sum_i ||D_i||_p^2. Only norms of Doob differences enter, and ||D_i||_p is at most the
            p-norm of f - f^(i), so that averaged stability suffices.
    """
    return np.exp(0.5 * (np.log(np.float64(p) - 1) + log_norms) - np.log(delta) / p)


def rio_log_tail(z: Array, p: Array, log_norms: Array) -> Array:
    """log min(1, ((p - 1) sum_i ||D_i||_p^2 / z^2)^(p/2))."""
    return np.minimum(p * (0.5 * (np.log(np.float64(p) - 1) + log_norms) - np.log(z)), 0.0)


def mcdiarmid_radius(delta: Array, squares: Array, sided: int = 1) -> Array:
    """sqrt(sum_i c_i^2 log(sided / delta) / 2) where |f - f^(i)| <= c_i (McDiarmid 1989)."""
    return np.sqrt(0.5 * squares * np.log(sided / np.float64(delta)))


def mcdiarmid_log_tail(z: Array, squares: Array, sided: int = 1) -> Array:
    """log min(1, sided exp(-2 z^2 / sum_i c_i^2))."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(sided) - 2 * np.float64(z) ** 2 / squares, 0.0)


def subgaussian_radius(delta: Array, squares: Array, sided: int = 1) -> Array:
    """sqrt(2 log(sided / delta) sum_i s_i^2) with the sub-Gaussian diameters s_i (Kontorovich 2014).

    E exp(t D_i) <= E exp(t (g(X_i) - g(X_i'))) = E cosh(t (g - g')) <= E cosh(t H_i) <= exp(t^2 s_i^2 / 2).
    """
    return np.sqrt(2 * squares * np.log(sided / np.float64(delta)))


def subgaussian_log_tail(z: Array, squares: Array, sided: int = 1) -> Array:
    """log min(1, sided exp(-z^2 / (2 sum_i s_i^2)))."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(sided) - np.float64(z) ** 2 / (2 * squares), 0.0)


def subexponential_radius(delta: Array, squares: Array, largest: Array, sided: int = 1) -> Array:
    """Bernstein's two regimes from the psi_1 norms s_i of the H_i, in the spirit of Maurer and Pontil (2021).

    E exp(H / s) <= 2 makes sum_k E H^k / (s^k k!) <= 1, hence E cosh(t H) <= 1 + (t s)^2 for t s <= 1, and as
    in the sub-Gaussian case log E exp(t (f - Ef)) <= t^2 sum_i s_i^2 for t <= 1 / max_i s_i. Chernoff's bound
    at the best such t has this inverse.

    Args:
        squares: sum_i s_i^2.
        largest: max_i s_i.
    """
    exponent = np.log(sided / np.float64(delta))
    gaussian = 2 * np.sqrt(squares * exponent)
    return np.where(gaussian * largest <= 2 * squares, gaussian, largest * exponent + squares / largest)


def subexponential_log_tail(z: Array, squares: Array, largest: Array, sided: int = 1) -> Array:
    """log min(1, sided exp(-max over t <= 1 / max s_i of t z - t^2 sum_i s_i^2))."""
    t = np.minimum(np.float64(z) / (2 * squares), 1 / largest)
    return np.minimum(np.log(sided) - t * z + t * t * squares, 0.0)
