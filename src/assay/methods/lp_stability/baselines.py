"""Risk bounds to compare with: uniform stability for bounded losses, and hold-out bounds for a fresh test
sample.

Every hold-out function returns an upper confidence bound of the mean loss, valid with probability at least 1
- delta over the draw of the test sample. Where no bound is valid, the bound is infinite and says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from assay.errors import InputError
from assay.methods.lp_stability.concentration import check_delta

# Orders at which Markov's inequality is tried on a moment bound.
MARKOV_ORDERS = np.geomspace(2.0, 2000.0, 400)
# Bets of the hedged-capital bound never risk more than this share of the capital.
LARGEST_BET = 0.5


@dataclass(frozen=True)
class MeanBound:
    """An upper confidence bound of a mean.

    Attributes:
        upper: infinite where no bound is valid.
        centre: the point estimate that the bound is built on.
        over: the randomness that the probability speaks of.
        reason: why `upper` is infinite; empty where it is finite.
    """

    upper: float
    centre: float
    over: str
    reason: str = ""


def bousquet_elisseeff(beta: float, m: int, delta: float, *, loss_bound: float) -> float:
    """Bound of R - Remp from uniform stability under replacement: beta + (2 m beta + M) sqrt(log(1/delta) /
    (2m)).

    McDiarmid's inequality with the differences 2 beta + M / m and the bias beta. Theorem 12 of Bousquet and
    Elisseeff (2002) has the stability under removal, beta_r, for which beta = 2 beta_r.

    Args:
        beta: sup over all samples, rows and points of |l(A_S, z) - l(A_(S^i), z)|; may be infinite.
        m: training size.
        delta: error probability.
        loss_bound: M, for losses in [0, M]; may be infinite.

    Raises:
        InputError: a value is out of range.
    """
    _check_stability(beta, m, delta, loss_bound)
    return beta + (2 * m * beta + loss_bound) * math.sqrt(math.log(1 / delta) / (2 * m))


def bousquet_klochkov_zhivotovskiy(beta: float, m: int, delta: float, *, loss_bound: float) -> float:
    """Bound of |R - Remp| of order beta log m log(1/delta) + M sqrt(log(1/delta) / m).

    Theorem 4 of Bousquet, Klochkov and Zhivotovskiy (2020) for functions with the differences 2 beta and
    conditional means at most M gives ||R - Remp||_p <= 2 beta + 24 sqrt(2) p beta ceil(log2 m) + 4 M sqrt(p /
    m) for p >= 2, to which Markov's inequality is applied at the best p.

    Args:
        beta, m, delta, loss_bound: as in `bousquet_elisseeff`, of which |R - Remp| is the two-sided version.

    Raises:
        InputError: a value is out of range.
    """
    _check_stability(beta, m, delta, loss_bound)
    p = MARKOV_ORDERS
    levels = max(1, math.ceil(math.log2(m)))
    norms = 2 * beta + 24 * math.sqrt(2) * p * beta * levels + 4 * loss_bound * np.sqrt(p / m)
    return float(np.min(norms * np.exp(math.log(1 / delta) / p)))


def log_free_stability(beta: float, m: int, delta: float, *, loss_bound: float) -> float:
    """Bound of |R - Remp| of order beta log(1/delta) + M sqrt(log(1/delta) / m), without log m.

    From ||R - Remp||_p <= 33 p beta + M sqrt(2 p / m) by Markov's inequality at the best p >= 2. The moment
    bound is quoted (Nguyen-Cung and Nguyen 2026, as cited by Dewasurendra 2026) and not derived here: it
    serves comparisons, no certificate uses it.

    Args:
        beta, m, delta, loss_bound: as in `bousquet_klochkov_zhivotovskiy`.

    Raises:
        InputError: a value is out of range.
    """
    _check_stability(beta, m, delta, loss_bound)
    p = MARKOV_ORDERS
    norms = 33 * p * beta + loss_bound * np.sqrt(2 * p / m)
    return float(np.min(norms * np.exp(math.log(1 / delta) / p)))


def hold_out_hoeffding(losses: Float[np.ndarray, " n"], delta: float, *, loss_bound: float) -> MeanBound:
    """mean + M sqrt(log(1/delta) / (2n)) for losses in [0, M] (Hoeffding 1963).

    Raises:
        InputError: a loss is outside [0, M] or not finite, or a value is out of range.
    """
    losses = _bounded_losses(losses, delta, loss_bound)
    mean = float(losses.mean())
    return MeanBound(
        mean + loss_bound * math.sqrt(math.log(1 / delta) / (2 * losses.size)), mean, _over(losses)
    )


def hold_out_empirical_bernstein(
    losses: Float[np.ndarray, " n"], delta: float, *, loss_bound: float
) -> MeanBound:
    """mean + sqrt(2 s^2 log(2/delta) / n) + 7 M log(2/delta) / (3 (n - 1)) for losses in [0, M], s^2 the
    sample variance (Maurer and Pontil 2009, Theorem 4).

    Raises:
        InputError: a loss is outside [0, M] or not finite, or a value is out of range.
    """
    losses = _bounded_losses(losses, delta, loss_bound)
    n, mean = losses.size, float(losses.mean())
    if n < 2:
        return MeanBound(math.inf, mean, _over(losses), "the sample variance needs 2 losses, there is 1")
    exponent = math.log(2 / delta)
    spread = math.sqrt(2 * float(losses.var(ddof=1)) * exponent / n)
    return MeanBound(mean + spread + 7 * loss_bound * exponent / (3 * (n - 1)), mean, _over(losses))


def hold_out_betting(losses: Float[np.ndarray, " n"], delta: float, *, loss_bound: float) -> MeanBound:
    """The hedged-capital bound for losses in [0, M] (Waudby-Smith and Ramdas 2024), one-sided.

    A gambler who believes that the mean is below x bets the share lambda_t on it at every loss; the capital
    prod_t (1 + lambda_t (x - l_t)) is a non-negative supermartingale if the mean is x or more, so that by
    Ville's inequality it ever reaches 1/delta with probability at most delta. The bound is the least x at
    which it does. Bets are predictable: sqrt(2 log(1/delta) / (n variance so far)), at most half of what
    cannot ruin the gambler.

    Args:
        losses: in an order that does not depend on their values.

    Raises:
        InputError: a loss is outside [0, M] or not finite, or a value is out of range.
    """
    losses = _bounded_losses(losses, delta, loss_bound) / loss_bound
    n = losses.size
    count = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(losses)) / (count + 1)
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(2 * math.log(1 / delta) / (n * before))

    def log_capital(x: float) -> float:
        # A loss of at most 1 costs the share bet * (1 - x) of the capital.
        shares = np.minimum(bets, LARGEST_BET / (1 - x)) if x < 1 else bets
        return float(np.max(np.cumsum(np.log1p(shares * (x - losses)))))

    # The capital grows with x: both x - l_t and the bets do where l_t < x, and shares * (l_t - x) falls
    # elsewhere.
    centre = float(losses.mean())
    lower, upper = 0.0, 1.0
    if log_capital(upper) < math.log(1 / delta):
        return MeanBound(loss_bound, centre * loss_bound, _over(losses))
    for _ in range(60):
        middle = 0.5 * (lower + upper)
        if log_capital(middle) < math.log(1 / delta):
            lower = middle
        else:
            upper = middle
    return MeanBound(upper * loss_bound, centre * loss_bound, _over(losses))


def hold_out_second_moment(
    losses: Float[np.ndarray, " n"], delta: float, *, second_moment: float
) -> MeanBound:
    """mean + sqrt(2 E l^2 log(1/delta) / n) for losses that are not negative, however heavy their tail.

    E exp(-t l) <= 1 - t E l + t^2 E l^2 / 2 bounds how far the sample mean can fall below the true one: only
    large losses are a problem for a sample mean, and they err on the safe side.

    Args:
        second_moment: E l^2 or an upper bound.

    Raises:
        InputError: a loss is negative or not finite, or a value is out of range.
    """
    losses = _heavy_losses(losses, delta, "second_moment", second_moment)
    if losses.min() < 0:
        raise InputError(
            f"losses has the value {losses.min():g}; this bound needs losses >= 0, use median_of_means"
        )
    mean = float(losses.mean())
    radius = math.sqrt(2 * second_moment * math.log(1 / delta) / losses.size)
    return MeanBound(mean + radius, mean, _over(losses))


def hold_out_median_of_means(
    losses: Float[np.ndarray, " n"], delta: float, *, variance: float, blocks: int | None = None
) -> MeanBound:
    """Median of the means of k blocks, plus the radius that the variance implies.

    A block mean falls z below the true mean with probability at most q = v / (v + b z^2), b its size
    (Cantelli); the median does only if at least half of the blocks do. The radius is the z at which the
    binomial probability of that is delta; the textbook radius 2 sqrt(v k / n) with k = ceil(8 log(1/delta))
    follows from weaker inequalities for the same estimator.

    Args:
        losses: in an order that does not depend on their values; at most b k of them are used.
        variance: Var l or an upper bound, such as E l^2.
        blocks: k; ceil(8 log(1/delta)) if not given.

    Raises:
        InputError: a loss is not finite, or a value is out of range.
    """
    losses = _heavy_losses(losses, delta, "variance", variance)
    k = math.ceil(8 * math.log(1 / delta)) if blocks is None else blocks
    if k < 1:
        raise InputError(f"blocks is {blocks!r}; at least one block is needed")
    size = losses.size // k
    if size == 0:
        reason = f"median of means with {k} blocks needs at least {k} losses, there are {losses.size}"
        return MeanBound(math.inf, float(losses.mean()), _over(losses), reason)
    centre = float(np.median(losses[: size * k].reshape(k, size).mean(axis=1)))
    # P(Bin(k, q) >= ceil(k / 2)) = delta is a quantile of the beta law.
    half = math.ceil(k / 2)
    share = float(stats.beta.ppf(delta, half, k - half + 1))
    radius = math.sqrt(variance * (1 - share) / (share * size))
    return MeanBound(centre + radius, centre, _over(losses))


def hold_out_catoni(losses: Float[np.ndarray, " n"], delta: float, *, variance: float) -> MeanBound:
    """Catoni's (2012) M-estimator plus sqrt(2 v log(1/delta) / (n - 2 log(1/delta))).

    Args:
        variance: Var l or an upper bound, such as E l^2.

    Returns:
        The bound; infinite where n <= 2 log(1/delta).

    Raises:
        InputError: a loss is not finite, or a value is out of range.
    """
    losses = _heavy_losses(losses, delta, "variance", variance)
    n, exponent = losses.size, math.log(1 / delta)
    if n <= 2 * exponent:
        reason = f"Catoni's bound needs more than 2 log(1/delta) = {2 * exponent:.3g} losses, there are {n}"
        return MeanBound(math.inf, float(losses.mean()), _over(losses), reason)
    lowest, highest = float(losses.min()), float(losses.max())
    if variance == 0 or lowest == highest:
        centre = float(losses.mean())
        return MeanBound(
            centre + math.sqrt(2 * variance * exponent / (n - 2 * exponent)), centre, _over(losses)
        )
    alpha = math.sqrt(2 * exponent / (n * variance * (1 + 2 * exponent / (n - 2 * exponent))))

    def influence(theta: float) -> float:
        x = alpha * (losses - theta)
        # The widest function between -log(1 - x + x^2/2) and log(1 + x + x^2/2) that does not decrease.
        return float(np.sum(np.sign(x) * np.log1p(np.abs(x) + 0.5 * x * x)))

    centre = float(np.asarray(optimize.brentq(influence, lowest, highest)))
    # The lesser root t of alpha t - alpha^2 (v + t^2) / 2 = log(1/delta) / n, which this alpha minimises.
    radius = math.sqrt(2 * variance * exponent / (n - 2 * exponent))
    return MeanBound(centre + radius, centre, _over(losses))


def _check_stability(beta: float, m: int, delta: float, loss_bound: float) -> None:
    check_delta(delta)
    if not beta >= 0:
        raise InputError(f"beta is {beta!r}; uniform stability is a number >= 0")
    if not m >= 1:
        raise InputError(f"m is {m!r}; the training size is at least 1")
    if not loss_bound > 0:
        raise InputError(f"loss_bound is {loss_bound!r}; it is positive")


def _finite_losses(losses: Float[np.ndarray, " n"], delta: float) -> Float[np.ndarray, " n"]:
    check_delta(delta)
    losses = np.asarray(losses, dtype=float)
    if losses.ndim != 1 or losses.size == 0:
        raise InputError(f"losses has shape {losses.shape}; a non-empty vector is needed")
    wrong = np.flatnonzero(~np.isfinite(losses))
    if wrong.size:
        raise InputError(f"losses[{wrong[0]}] is {losses[wrong[0]]}; all losses must be finite")
    return losses


def _bounded_losses(
    losses: Float[np.ndarray, " n"], delta: float, loss_bound: float
) -> Float[np.ndarray, " n"]:
    losses = _finite_losses(losses, delta)
    if not 0 < loss_bound < math.inf:
        raise InputError(f"loss_bound is {loss_bound!r}; it is a positive finite number")
    wrong = np.flatnonzero((losses < 0) | (losses > loss_bound))
    if wrong.size:
        raise InputError(f"losses[{wrong[0]}] is {losses[wrong[0]]:g}, outside [0, {loss_bound:g}]")
    return losses


def _heavy_losses(
    losses: Float[np.ndarray, " n"], delta: float, name: str, moment: float
) -> Float[np.ndarray, " n"]:
    losses = _finite_losses(losses, delta)
    if not 0 <= moment < math.inf:
        raise InputError(f"{name} is {moment!r}; it is a finite number >= 0")
    return losses


def _over(losses: Float[np.ndarray, " n"]) -> str:
    return f"draw of the {losses.size} test rows"
