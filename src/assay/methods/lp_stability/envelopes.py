"""What is known of how much swapping one independent unit can move a statistic.

A statistic f of independent units X_1..X_n has the **envelope** H_i when |f - f^(i)| <= H_i(X_i, X_i') for
all values of the other units, where f^(i) is f with X_i replaced by an independent copy X_i'. The
concentration bounds need moments of H, and of its conditional mean h(x) = E[H(x, X')], which bounds the Doob
difference of unit i. `DeclaredEnvelope` holds stated moments and constants, `FiniteEnvelope` a law on
finitely many points; the envelopes of continuous laws and of draws are in `laws`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from assay.errors import InputError

Provenance = Literal["analytic", "declared-law", "estimated"]
Array1 = Float[np.ndarray, " k"]

# Below this a double loses digits, and a product of two such numbers becomes zero: a radius of zero would
# follow.
SMALLEST_MOMENT = 1e-290


class AssumptionViolated(InputError):
    """What the data or the call show contradicts an assumption that a bound rests on."""


@runtime_checkable
class Envelope(Protocol):
    """One unit's swap effect H. All units are alike, up to the `scales` that `radius` takes.

    Attributes:
        provenance: "analytic" (proven constants), "declared-law" (computed from a law that the user states)
            or "estimated" (from data: no bound that rests on it is a guarantee).
        pointwise: whether |f - f^(i)| <= H holds for all values of the other units (an envelope proper), or
            only the norms of f - f^(i) over the draw of everything are bounded by those of H (averaged
            stability). The second feeds the moment bounds alone: Efron-Stein, Rio, von Bahr-Esseen.
        orders: the moment orders p > 1 worth trying, ascending.
        bound: a c with H <= c almost surely; infinite where none is known.
        subgaussian: an s with E exp(t e H) <= exp(t^2 s^2 / 2) for all t, e a Rademacher sign; infinite if
            none.
        subexponential: an s with E exp(H / s) <= 2, that is the psi_1 norm of H; infinite where none is
            known.
    """

    @property
    def provenance(self) -> Provenance: ...
    @property
    def pointwise(self) -> bool: ...
    @property
    def orders(self) -> tuple[float, ...]: ...
    @property
    def bound(self) -> float: ...
    @property
    def subgaussian(self) -> float: ...
    @property
    def subexponential(self) -> float: ...

    def log_moments(self, p: float) -> float:
        """log E H^p, or an upper bound; infinite where it is infinite or unknown."""
        ...

    def log_conditional_moments(self, p: float) -> float:
        """log E h^p, or an upper bound: at most `log_moments(p)` by Jensen's inequality."""
        ...

    def tail(self, y: Array1) -> tuple[Array1, Array1] | None:
        """P(h > y) and E[h; h > y], or upper bounds, non-increasing in y; None where the law is unknown."""
        ...

    def sample(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, " n"] | None:
        """`n` independent draws of H, or None where the law is unknown."""
        ...


def _checked_moments(moments: Mapping[float, float], field: str) -> dict[float, float]:
    checked = {}
    for order, value in moments.items():
        if not (isinstance(order, int | float) and math.isfinite(order) and order > 0):
            raise InputError(f"{field} has the order {order!r}; orders are positive numbers")
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{field}[{order:g}] is {value!r}; a moment E H^p is a finite number >= 0")
        if 0 < value < SMALLEST_MOMENT:
            raise InputError(
                f"{field}[{order:g}] is {value!r}, at the edge of underflow; state H in larger units"
            )
        checked[float(order)] = float(value)
    if len({value == 0 for value in checked.values()}) == 2:
        raise InputError(
            f"{field} mixes zero with positive values: {dict(moments)!r}. H = 0 almost surely makes all "
            "of them zero; a value that underflowed needs H in other units"
        )
    return dict(sorted(checked.items()))


@dataclass(frozen=True)
class DeclaredEnvelope:
    """An envelope of which only constants and moments are stated.

    Moments between the stated orders follow by Lyapunov's inequality, those below the lowest by Jensen's,
    those above the highest from the almost sure bound; the least of all that apply is used.

    Attributes:
        moments: {p: E H^p}, each an upper bound.
        conditional_moments: {p: E h^p}, where they are known and smaller.
        bound, subgaussian, subexponential, pointwise, provenance: see `Envelope`.

    Raises:
        InputError: nothing is stated, or a value is not a finite number >= 0.
    """

    moments: Mapping[float, float]
    conditional_moments: Mapping[float, float] | None = None
    bound: float = math.inf
    subgaussian: float = math.inf
    subexponential: float = math.inf
    pointwise: bool = True
    provenance: Provenance = "declared-law"

    def __post_init__(self) -> None:
        for field in ("bound", "subgaussian", "subexponential"):
            if not getattr(self, field) >= 0:
                raise InputError(f"{field} is {getattr(self, field)!r}; it is a number >= 0")
        moments = _checked_moments(self.moments, "moments")
        conditional = _checked_moments(self.conditional_moments or {}, "conditional_moments")
        if (
            not moments
            and not conditional
            and min(self.bound, self.subgaussian, self.subexponential) == math.inf
        ):
            raise InputError(
                "moments is empty and no other constant is stated; give {p: E H^p} for some p > 1, or a bound"
            )
        object.__setattr__(self, "moments", moments)
        object.__setattr__(self, "conditional_moments", conditional)

    @property
    def orders(self) -> tuple[float, ...]:
        """The stated orders above 1, and 2 where a higher one or the almost sure bound implies it."""
        stated = {p for p in (*self.moments, *(self.conditional_moments or {})) if p > 1}
        if self.bound < math.inf or (stated and max(stated) > 2):
            stated.add(2.0)
        return tuple(sorted(stated))

    def log_moments(self, p: float) -> float:
        return _interpolate(self.moments, p, self.bound)

    def log_conditional_moments(self, p: float) -> float:
        return min(self.log_moments(p), _interpolate(self.conditional_moments or {}, p, self.bound))

    def tail(self, y: Array1) -> None:
        return None

    def sample(self, n: int, rng: np.random.Generator) -> None:
        return None


def _interpolate(moments: Mapping[float, float], p: float, bound: float) -> float:
    """The least upper bound of log E H^p that stated moments and H <= bound imply."""
    log_bound = math.log(bound) if bound > 0 else -math.inf
    stated = [(q, math.log(value) if value > 0 else -math.inf) for q, value in moments.items()]
    candidates = [p * log_bound]
    for q, log_value in stated:
        if q >= p:
            candidates.append(log_value * p / q)
        elif log_bound < math.inf:
            candidates.append(log_value + (p - q) * log_bound)
    for q, log_value in stated:
        for r, log_other in stated:
            if q < p < r and log_value > -math.inf:
                candidates.append(((r - p) * log_value + (p - q) * log_other) / (r - q))
    return min(candidates)


@dataclass(frozen=True)
class FiniteEnvelope:
    """The envelope of a unit that takes finitely many values: everything about it is exact.

    Attributes:
        values: H(x, x') for every pair of values.
        probabilities: of the values, summing to one.

    Raises:
        InputError: the shapes disagree, a value is negative or not finite, or the probabilities are no law.
    """

    values: Float[np.ndarray, "k k"]
    probabilities: Float[np.ndarray, " k"]
    pointwise: bool = True
    provenance: Provenance = "declared-law"

    def __post_init__(self) -> None:
        values, law = np.asarray(self.values, dtype=float), np.asarray(self.probabilities, dtype=float)
        if law.ndim != 1 or values.shape != (law.size, law.size) or law.size == 0:
            raise InputError(
                f"values has shape {values.shape} and probabilities {law.shape}; they must be (k, k) and (k,)"
            )
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InputError(
                f"values has the entry {values[~(values >= 0) | np.isinf(values)][0]}; all are finite, >= 0"
            )
        if not ((law >= 0).all() and abs(law.sum() - 1) < 1e-9):
            raise InputError(f"probabilities must be >= 0 and sum to 1, got a sum of {law.sum()!r}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "probabilities", law)

    @property
    def _pairs(self) -> tuple[Array1, Array1]:
        """H of the pairs that occur, with their probabilities."""
        weights = np.outer(self.probabilities, self.probabilities)
        return self.values[weights > 0], weights[weights > 0]

    @property
    def conditional(self) -> Float[np.ndarray, " k"]:
        """h(x) of every value x."""
        return self.values @ self.probabilities

    @property
    def orders(self) -> tuple[float, ...]:
        return (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)

    @property
    def bound(self) -> float:
        return float(self._pairs[0].max())

    @property
    def subgaussian(self) -> float:
        """H itself: cosh(t H) <= exp(t^2 H^2 / 2) <= exp(t^2 bound^2 / 2)."""
        return self.bound

    @property
    def subexponential(self) -> float:
        """From H <= c and convexity: E exp(H / s) <= 1 + (E H / c)(exp(c / s) - 1) = 2 at this s."""
        mean = float(self._pairs[0] @ self._pairs[1])
        return self.bound / math.log1p(self.bound / mean) if mean > 0 else 0.0

    def log_moments(self, p: float) -> float:
        return _log_mean_power(*self._pairs, p)

    def log_conditional_moments(self, p: float) -> float:
        present = self.probabilities > 0
        return _log_mean_power(self.conditional[present], self.probabilities[present], p)

    def tail(self, y: Array1) -> tuple[Array1, Array1]:
        beyond = self.conditional[:, None] > np.asarray(y)[None, :]
        return self.probabilities @ beyond, (self.probabilities * self.conditional) @ beyond

    def sample(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        pair = rng.choice(self.probabilities.size, size=(2, n), p=self.probabilities)
        return self.values[pair[0], pair[1]]


def _log_mean_power(values: Array1, weights: Array1, p: float) -> float:
    positive = values > 0
    if not positive.any():
        return -math.inf
    return float(np.asarray(logsumexp(p * np.log(values[positive]), b=weights[positive])))


def as_envelope(envelope: Envelope | Mapping[float, float]) -> Envelope:
    """The envelope itself, or the `DeclaredEnvelope` of a mapping {p: E H^p}.

    Raises:
        InputError: it is neither.
    """
    if isinstance(envelope, Mapping):
        return DeclaredEnvelope(envelope)
    if isinstance(envelope, Envelope):
        return envelope
    raise InputError(f"envelope is a {type(envelope).__name__}; pass an Envelope or a mapping {{p: E H^p}}")
