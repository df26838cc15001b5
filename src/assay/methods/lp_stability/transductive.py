"""Learning from m of N fixed points, to be judged on the other u: draws without replacement.

f is a symmetric function of a subset S of size m, drawn uniformly from N = m + u points, and swapping i in S
for j outside changes it by at most H(i, j). By complement f is a function of the u other points too, with the
same envelope, so let s = min(m, u) be the smaller part and r = N - s. Draw its points one after the other.
Given the first k - 1, swap the candidate x for x': f changes only if x' would otherwise have stayed outside
the part, which happens with probability r / (N - k), and then by at most H(x, x'). With w_k = r / (N - k) and
R the N - k + 1 points left, the k-th Doob difference is at most w_k h_k(x), h_k(x) = mean over x' in R of
H(x, x'), and its conditional variance at most w_k^2 / 2 times the mean of H^2 over R x R.

Over the draw of the past, R x R is a uniform pair that is distinct with probability (N - k) / (N - k + 1):
that gives all unconditional moments. Given the past it is not: the remaining points can be the worst ones.
But their sum over pairs is at most that over all pairs, so the conditional mean exceeds the unconditional one
by at most the factor N (N - 1) / ((N - k + 1) (N - k)), below 4 (1 + 1/N) because k <= s <= N / 2. Theorem
3.9 of Lei, Bonnerjee, Han and Wu (2026) is printed with the unconditional variance in the exponent, for which
the proof route of Theorem 2.2 does not suffice; here the exponent has the conditional one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability import closed_forms, fuk_nagaev, generalization, truncation
from assay.methods.lp_stability.analytic import PairFunction
from assay.methods.lp_stability.concentration import Radius, check_delta
from assay.methods.lp_stability.envelopes import Envelope, as_envelope

TransductiveBound = Literal["best", "optimised", "rio", "chebyshev", "mcdiarmid"]


class _Bound(NamedTuple):
    """One bound at one order."""

    name: str
    p: float | None
    radius: Callable[[float, int], float]
    log_tail: Callable[[float, int], float]


def printed_tail(z: float, m: int, u: int, p: float, *, moment_2: float, moment_p: float) -> float:
    """Theorem 3.9 as printed, for comparison: min(1, c1 V_p / z^p + 2 exp(-c2 z^2 / V_2)) with

    V_p = u^p / (p - 1) ((u - 1/2)^(1-p) - (N - 1/2)^(1-p)) E H^p,
    V_2 = m u / ((N - 1/2) (1 - 1 / (2 max(m, u)))) E H^2,

    moments over a uniform pair of distinct points and p >= 2.
    """
    total = m + u
    v_p = u**p / (p - 1) * ((u - 0.5) ** (1 - p) - (total - 0.5) ** (1 - p)) * moment_p
    v_2 = m * u / ((total - 0.5) * (1 - 1 / (2 * max(m, u)))) * moment_2
    with np.errstate(divide="ignore"):
        return float(np.exp(closed_forms.paper_log_tail(z, p, np.log(v_p), v_2)))


def gap_function(stability: PairFunction, sensitivity: PairFunction, m: int, u: int) -> PairFunction:
    """2 beta H + (1/m + 1/u) beta' G, the swap envelope of test risk minus training risk.

    The two swapped points trade places between the averages, which moves (test - training) by
    (1/u + 1/m) |l(z_i) - l(z_j)|. Theorem 3.10 prints |1/u - 1/m|, which is false
    (`witnesses.transductive_witness`).
    """
    return 2 * stability + (1 / m + 1 / u) * sensitivity


@dataclass(frozen=True)
class _Draws:
    """The weights of the draws, and the sums that the bounds need."""

    m: int
    u: int
    envelope: Envelope

    def __post_init__(self) -> None:
        for name in ("m", "u"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name} is {value!r}; it is an integer >= 1")

    @property
    def left(self) -> Float[np.ndarray, " s"]:
        """N - k for k = 1..s."""
        smaller, total = min(self.m, self.u), self.m + self.u
        return total - np.arange(1.0, smaller + 1)

    @property
    def weights(self) -> Float[np.ndarray, " s"]:
        return max(self.m, self.u) / self.left

    @property
    def distinct(self) -> Float[np.ndarray, " s"]:
        """Probability that two of the remaining points, drawn with replacement, differ."""
        return self.left / (self.left + 1)

    @property
    def constant(self) -> bool:
        return any(self.envelope.log_moments(p) == -math.inf for p in self.envelope.orders)

    def log_sum(self, p: float, *, worst_past: bool = False) -> float:
        """log sum_k w_k^p E h_k^p, or of the worst conditional means given the past."""
        total = self.m + self.u
        factor = total * (total - 1) / (self.left + 1) ** 2 if worst_past else self.distinct
        return math.log(np.sum(self.weights**p * factor)) + self.envelope.log_moments(p)

    def log_norm_sum(self, p: float) -> float:
        """log sum_k (w_k^p E h_k^p)^(2/p)."""
        norms = np.sum(self.weights**2 * self.distinct ** (2 / p))
        return math.log(norms) + 2 / p * self.envelope.log_moments(p)

    def variance(self, *, worst_past: bool = False) -> float:
        log_variance = self.log_sum(2.0, worst_past=worst_past) - math.log(2)
        return math.exp(log_variance) if log_variance < 700 else math.inf


def radius(
    envelope: Envelope | Mapping[float, float],
    m: int,
    u: int,
    delta: float,
    *,
    p: float | Literal["auto"] = "auto",
    bound: TransductiveBound = "best",
    sided: Literal[1, 2] = 1,
) -> Radius:
    """The radius of f around its mean over the draw of the subset (Theorem 3.9, corrected).

    Args:
        envelope: of a swap; its moments are those over a uniform pair of distinct points. A mapping stands
            for stated moments.
        m, u: sizes of the two parts.
        delta: error probability.
        p: moment order above 1, or the best of the envelope's.
        bound: as for independent units; "mcdiarmid" needs the almost sure bound.
        sided: 1 or 2.

    Raises:
        InputError: a value is out of range.
    """
    check_delta(delta)
    draws = _Draws(m, u, as_envelope(envelope))
    provenance = draws.envelope.provenance
    if draws.constant:
        return Radius(0.0, bound, sided=sided, provenance=provenance)
    found = [(each.radius(delta, sided), each) for each in _bounds(draws, p, bound, sided)]
    value, best = min(found, key=lambda pair: pair[0], default=(math.inf, None))
    if best is None or value == math.inf:
        reason = f"{bound}: no moment that it needs is known or finite"
        return Radius(math.inf, bound, sided=sided, provenance=provenance, reason=reason)
    return Radius(value, best.name, best.p, sided=sided, provenance=provenance)


def tail(
    z: float,
    envelope: Envelope | Mapping[float, float],
    m: int,
    u: int,
    *,
    p: float | Literal["auto"] = "auto",
    bound: TransductiveBound = "best",
    sided: Literal[1, 2] = 1,
) -> float:
    """Upper bound of the probability that f is z or more away from its mean: the inverse of `radius`.

    Raises:
        InputError: a value is out of range.
    """
    if not 0 < z < math.inf:
        raise InputError(f"z is {z!r}; the distance is a positive finite number")
    draws = _Draws(m, u, as_envelope(envelope))
    if draws.constant:
        return 0.0
    return math.exp(min((each.log_tail(z, sided) for each in _bounds(draws, p, bound, sided)), default=0.0))


def gap(
    envelope: Envelope | Mapping[float, float],
    m: int,
    u: int,
    delta: float,
    *,
    bias: float,
    p: float | Literal["auto"] = "auto",
    bound: TransductiveBound = "best",
) -> generalization.GapBound:
    """Bound of the risk on the u points minus the training risk on the m points (Theorem 3.10, corrected).

    Args:
        envelope: of `gap_function`.
        bias: bound of the mean of the difference: beta E H over a uniform pair of distinct points.
        m, u, delta, p, bound: as in `radius`.

    Raises:
        InputError: a value is out of range.
    """
    found = radius(envelope, m, u, delta, p=p, bound=bound)
    over = f"choice of the {m} training rows among the {m + u}"
    return generalization.combine(found, bias, "bias", "training part", over)


def _bounds(draws: _Draws, p: float | Literal["auto"], bound: str, sided: int) -> list[_Bound]:
    """The bounds that apply, at every order to try."""
    if bound not in get_args(TransductiveBound):
        raise InputError(f"bound is {bound!r}; choose one of {', '.join(get_args(TransductiveBound))}")
    if sided not in (1, 2):
        raise InputError(f"sided is {sided!r}; 1 bounds f - Ef, 2 bounds |f - Ef|")
    if p != "auto" and not 1 < p < math.inf:
        raise InputError(f'p is {p!r}; the moment order is a finite number above 1, or "auto"')
    envelope = draws.envelope
    orders = [
        q for q in (envelope.orders if p == "auto" else (float(p),)) if envelope.log_moments(q) < math.inf
    ]
    applicable: list[_Bound] = []
    variance = draws.variance()
    if variance < math.inf:
        applicable.append(
            _Bound(
                "chebyshev",
                None,
                lambda delta, sided: float(closed_forms.chebyshev_radius(delta, variance, sided)),
                lambda z, sided: float(closed_forms.chebyshev_log_tail(z, variance, sided)),
            )
        )
    if envelope.pointwise and envelope.bound < math.inf:
        squares = float(np.sum(draws.weights**2)) * envelope.bound**2
        applicable.append(
            _Bound(
                "mcdiarmid",
                None,
                lambda delta, sided: float(closed_forms.mcdiarmid_radius(delta, squares, sided)),
                lambda z, sided: float(closed_forms.mcdiarmid_log_tail(z, squares, sided)),
            )
        )
    for order in orders:
        if order >= 2:
            applicable.append(_rio(draws, order))
        if envelope.pointwise and (order < 2 or variance < math.inf):
            applicable.append(_optimised(draws, order))
    return [each for each in applicable if bound in ("best", each.name)]


def _rio(draws: _Draws, p: float) -> _Bound:
    log_norms = draws.log_norm_sum(p)
    return _Bound(
        "rio",
        p,
        lambda delta, sided: float(closed_forms.rio_radius(delta, p, log_norms)),
        lambda z, sided: float(closed_forms.rio_log_tail(z, p, log_norms)),
    )


def _optimised(draws: _Draws, p: float) -> _Bound:
    sums = truncation.TruncationSums(
        p, draws.log_sum(p), draws.log_sum(p, worst_past=True), draws.variance(worst_past=True)
    )
    return _Bound(
        "optimised",
        p,
        lambda delta, sided: float(fuk_nagaev.moment_radius(delta, sums, sided)[0]),
        lambda z, sided: fuk_nagaev.moment_log_tail(z, sums, sided),
    )
