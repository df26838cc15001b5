"""What a user declares about the data and the learner, and the checks that data can make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.lp_stability.envelopes import AssumptionViolated, DeclaredEnvelope
from assay.methods.lp_stability.label_envelope import DeclaredLaw, LabelSize

# A declared moment is refuted when the sample's is larger by more than this many standard errors.
REFUTED_BY = 3.0


@dataclass(frozen=True)
class Assumptions:
    """Constants that hold for the data's law or for the learner, whatever the sample.

    A guarantee is true if these are. Data can refute some of them, never prove them.

    Args:
        x_bound: ||x|| <= x_bound for every row.
        weight_bound: ||w|| <= weight_bound for the coefficients on every sample. `BallRidge` guarantees its
            radius and needs none.
        label_bound: |y| <= label_bound for every row.
        label_moment: p -> a bound of E |y|^p, p >= 1.
        label_law: the law of y, a frozen continuous distribution of `scipy.stats` or a text like
            `"t:df=5,scale=0.5"`.
        row_law: the law of a row, `(n, rng) -> (X, y)`.
        fixed_design: the predictors are fixed, and `label_bound`, `label_moment` and `label_law` speak of the
            noise y - E[y|x], which has the same law (or satisfies the same bounds) at every row. The
            guarantee is then for new labels at the same predictors.
        lipschitz: of the evaluation loss in the residual; needed for a loss of the user's own.
        strong_convexity: the learner minimises an average convex loss plus a penalty that makes the objective
            strongly convex with this constant.
        training_lipschitz: of that loss in the prediction; with `strong_convexity`.
        kappa: E H^(2p) <= kappa (E H^p)^2 for the swap effect H and every order p that is used: with it,
            moments estimated from the sample bound the true ones.
        monotone_risk: the expected risk doesn't grow with a further training row.

    Raises:
        InputError: a constant is out of its range.
    """

    x_bound: float | None = None
    weight_bound: float | None = None
    label_bound: float | None = None
    label_moment: Mapping[float, float] = field(default_factory=dict)
    label_law: Any = None
    row_law: Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]] | None = None
    fixed_design: bool = False
    lipschitz: float | None = None
    strong_convexity: float | None = None
    training_lipschitz: float | None = None
    kappa: float | None = None
    monotone_risk: bool = False

    def __post_init__(self) -> None:
        positive = ("x_bound", "weight_bound", "lipschitz", "strong_convexity", "training_lipschitz")
        for name, least in (*((name, 0.0) for name in positive), ("label_bound", 0.0), ("kappa", 1.0)):
            value = getattr(self, name)
            if value is None:
                continue
            number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
            enough = number > least or (number == least and name not in positive)
            if not enough or math.isinf(number):
                sign = f"{'above' if name in positive else 'at least'} {least:g}"
                raise InputError(f"assumption {name} is {value!r}: declare a finite number {sign}")
        for name in ("fixed_design", "monotone_risk"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"assumption {name} is {getattr(self, name)!r}: declare True or False")
        if not isinstance(self.label_moment, Mapping):
            raise InputError(
                f"assumption label_moment is {self.label_moment!r}: declare a mapping from p to E |y|^p"
            )
        for p, value in self.label_moment.items():
            if not (isinstance(p, Real) and 1 <= p < math.inf):
                raise InputError(f"assumption label_moment has the order {p!r}: declare orders of at least 1")
            if not (isinstance(value, Real) and 0 <= value < math.inf):
                raise InputError(
                    f"assumption label_moment[{p:g}] is {value!r}: declare a finite number of at least 0"
                )
        self._check_growth()
        if isinstance(self.label_law, str):
            object.__setattr__(self, "label_law", law_from_text(self.label_law))
        elif self.label_law is not None and not all(hasattr(self.label_law, name) for name in ("sf", "dist")):
            raise InputError(
                f"assumption label_law is {self.label_law!r}: declare a frozen law of scipy.stats"
            )

    def _check_growth(self) -> None:
        """(E |y|^p)^(1/p) cannot fall with p; a declared list in which it does contradicts itself."""
        norms = [(float(p), float(v) ** (1 / float(p))) for p, v in sorted(self.label_moment.items())]
        for (p, low), (q, high) in pairwise(norms):
            if high < low * (1 - 1e-9):
                raise InputError(
                    f"assumption label_moment: E|y|^{q:g} = {self.label_moment[q]:g} is impossible beside "
                    f"E|y|^{p:g} = {self.label_moment[p]:g}: it is at least {low**q:.6g}"
                )

    def label_size(self) -> LabelSize | None:
        """What is declared of |y| (of |y - E[y|x]| for a fixed design); None where nothing is."""
        if self.label_law is not None:
            return DeclaredLaw(self.label_law)
        if self.label_moment or self.label_bound is not None:
            bound = math.inf if self.label_bound is None else float(self.label_bound)
            moments = {float(p): float(v) for p, v in self.label_moment.items()}
            return DeclaredEnvelope(moments, bound=bound, provenance="analytic")
        return None

    def check_rows(self, X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> None:
        """Compare the constants with the rows.

        Raises:
            AssumptionViolated: a row is beyond a bound, or a sample moment is larger than a declared one by
                more than three standard errors.
        """
        if self.x_bound is not None:
            norms = np.linalg.norm(X, axis=1)
            _check_below("x_bound", self.x_bound, norms, "||x||")
        if self.fixed_design:
            # The noise is not seen.
            return
        sizes = np.abs(y)
        if self.label_bound is not None:
            _check_below("label_bound", self.label_bound, sizes, "|y|")
        for p, declared in self.label_moment.items():
            _check_moment(f"label_moment[{p:g}]", float(p), float(declared), sizes)
        if self.label_law is not None:
            law = DeclaredLaw(self.label_law)
            for p in (1.0, 2.0):
                if (declared := law.log_moments(p)) < math.inf:
                    _check_moment(f"label_law (its E|y|^{p:g})", p, math.exp(declared), sizes)
            low, high = self.label_law.support()
            if (outside := np.flatnonzero((y < low) | (y > high))).size:
                row = outside[0]
                raise AssumptionViolated(
                    f"row {row} has the label {y[row]:g}, outside the support of label_law"
                )

    def declared(self) -> dict[str, Any]:
        """What was declared, as JSON values."""
        values: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is None or value is False or value == {}:
                continue
            if name == "label_moment":
                value = {f"{float(p):g}": float(v) for p, v in sorted(value.items())}
            elif name == "label_law":
                value = law_text(value)
            elif name == "row_law":
                value = getattr(value, "__qualname__", type(value).__name__)
            values[name] = value
        return values


def law_from_text(text: str) -> Any:
    """A frozen continuous law of `scipy.stats` from a text like `"t:df=5,scale=0.5"`.

    Raises:
        InputError: there is no such law, or its parameters are wrong.
    """
    from scipy import stats

    name, _, arguments = text.strip().partition(":")
    family = getattr(stats, name, None)
    if not isinstance(family, stats.rv_continuous):
        raise InputError(
            f"label law {text!r}: {name!r} is no continuous law of scipy.stats (norm, t, pareto, ...)"
        )
    parameters = named_numbers(arguments, f"label law {text!r}")
    try:
        law = family(**parameters)
        law.median()
    except TypeError as error:
        raise InputError(f"label law {text!r}: {error}") from None
    if not math.isfinite(law.median()):
        raise InputError(f"label law {text!r}: the parameters are out of range")
    return law


def named_numbers(text: str, what: str) -> dict[str, float]:
    """Numbers by name from a text like `"df=5,scale=0.5"`.

    Raises:
        InputError: a part is not `name=number`; the message begins with `what`.
    """
    numbers: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not math.isfinite(number):
            raise InputError(f"{what}: {part!r} is not of the form name=number")
        if name.strip() in numbers:
            raise InputError(f"{what}: {name.strip()} is given twice")
        numbers[name.strip()] = number
    return numbers


def law_text(law: Any) -> str:
    """The text of a frozen law: its family and parameters."""
    family = getattr(getattr(law, "dist", None), "name", type(law).__name__)
    shapes = [name.strip() for name in (getattr(law.dist, "shapes", None) or "").split(",") if name.strip()]
    names = [*shapes, "loc", "scale"]
    parameters = dict(zip(names, law.args, strict=False)) | law.kwds
    return f"{family}:" + ",".join(f"{name}={float(value):g}" for name, value in parameters.items())


def _check_below(name: str, bound: float, values: Float[np.ndarray, " n"], what: str) -> None:
    row = int(values.argmax())
    # Rounding of a norm is no violation.
    if values[row] > bound * (1 + 1e-12):
        raise AssumptionViolated(
            f"assumption {name}={bound:g} is violated by row {row}: {what} = {values[row]:.6g}; "
            f"declare a bound that holds for every row, or rescale the data"
        )


def _check_moment(name: str, p: float, declared: float, sizes: Float[np.ndarray, " n"]) -> None:
    powers = sizes**p
    error = powers.std(ddof=1) / math.sqrt(len(powers)) if len(powers) > 1 else math.inf
    if powers.mean() > declared + REFUTED_BY * error + 1e-12 * declared:
        raise AssumptionViolated(
            f"assumption {name}={declared:.6g} is contradicted by the data: the sample mean of |y|^{p:g} is "
            f"{powers.mean():.6g}, more than {REFUTED_BY:g} standard errors ({error:.3g}) above it"
        )
