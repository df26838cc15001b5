"""Analytic envelopes: how far a swap of one training row can move a learner's loss, for every sample.

Each is a `PairFunction` of two rows z = (x, y) and z' = (x', y'). With beta H the change of the loss at any
point when z is swapped for z', and beta' G the change of the loss of one model between the points z and z',
the gap between risk and training risk has the envelope 2 beta H + beta' G / m (see `generalization`).

Strong convexity is that of the regulariser in w, with the data term an average over the m rows: for
(1/m) sum l_i(w) + (lam / 2) ||w||^2 it is lam. An intercept that is not penalised breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from assay.errors import InputError

Rows = Float[np.ndarray, "n d"]
Values = Float[np.ndarray, " n"]

# Learners of which no pointwise envelope in the swapped pair alone exists, and why.
WITHOUT_ENVELOPE = {
    "ridge": (
        "ridge regression without a bound on the weights has no envelope in the swapped pair: the residuals "
        "that drive the change of the weights depend on all labels; constrain ||w|| <= R (constrained ridge)"
    ),
    "knn": (
        "nearest-neighbour regression with random inputs has no L_p envelope in the swapped pair: a swap can "
        "bring in a displaced neighbour with any label; condition on the inputs (linear smoother)"
    ),
}


@dataclass(frozen=True)
class _Part:
    """coefficient * pair(z, z') <= coefficient * (row(z) + row(z')), with equality where no pair is given."""

    coefficient: float
    row: Callable[[Rows, Values], Values]
    pair: Callable[[Rows, Values, Rows, Values], Values] | None = None


@dataclass(frozen=True)
class PairFunction:
    """A non-negative function H of two rows; `a + b`, `c * a` and `a / c` are pair functions again.

    Attributes:
        parts: what it is the sum of.
        assumptions: what must hold for it to be an envelope, one sentence each.
    """

    parts: tuple[_Part, ...]
    assumptions: tuple[str, ...]

    def __call__(self, X: Rows, y: Values, X_swap: Rows, y_swap: Values) -> Values:
        """H(z_i, z_i') for every i."""
        total = np.zeros(len(y))
        for part in self.parts:
            if part.pair is None:
                total += part.coefficient * (part.row(X, y) + part.row(X_swap, y_swap))
            else:
                total += part.coefficient * part.pair(X, y, X_swap, y_swap)
        return total

    def row_share(self, X: Rows, y: Values) -> Values:
        """a(z_i) for every i, where H(z, z') <= a(z) + a(z'); hence h(z) <= a(z) + E a."""
        return np.sum([part.coefficient * part.row(X, y) for part in self.parts], axis=0)

    def __add__(self, other: PairFunction) -> PairFunction:
        fresh = tuple(sentence for sentence in other.assumptions if sentence not in self.assumptions)
        return PairFunction(self.parts + other.parts, self.assumptions + fresh)

    def __rmul__(self, factor: float) -> PairFunction:
        if not 0 <= factor < math.inf:
            raise InputError(f"an envelope is multiplied by {factor!r}; the factor is a finite number >= 0")
        parts = tuple(replace(part, coefficient=factor * part.coefficient) for part in self.parts)
        return replace(self, parts=parts)

    def __truediv__(self, divisor: float) -> PairFunction:
        return (1 / divisor) * self


def regularised_erm(
    *,
    lipschitz: float,
    x_bound: float,
    strong_convexity: float,
    m: int,
    evaluation_lipschitz: float | None = None,
) -> PairFunction:
    """beta H of regularised empirical risk minimisation with a convex Lipschitz loss of the prediction.

    The minimisers before and after the swap differ by at most (L / (lam m)) (||x|| + ||x'||), the norm of the
    difference of the gradients at either of them over the strong convexity; a prediction by at most B times
    that.

    Args:
        lipschitz: L of the training loss in the prediction w.x.
        x_bound: B >= ||x|| of every row.
        strong_convexity: lam.
        m: training size.
        evaluation_lipschitz: of the loss that is evaluated; that of the training loss if not given.
    """
    _check(lipschitz=lipschitz, x_bound=x_bound, strong_convexity=strong_convexity, m=m)
    evaluated = lipschitz if evaluation_lipschitz is None else evaluation_lipschitz
    _check(evaluation_lipschitz=evaluated)
    part = _Part(
        evaluated * x_bound * lipschitz / (strong_convexity * m),
        lambda X, y: np.linalg.norm(X, axis=1),
    )
    return PairFunction(
        (part,),
        (
            f"the training loss is convex and {lipschitz:g}-Lipschitz in the prediction",
            f"the evaluated loss is {evaluated:g}-Lipschitz in the prediction",
            f"the training objective is {strong_convexity:g}-strongly convex in all its weights",
            _bounded_inputs(x_bound),
        ),
    )


def constrained_ridge(
    *,
    x_bound: float,
    weight_bound: float,
    strong_convexity: float,
    m: int,
    evaluation_lipschitz: float = 1.0,
) -> PairFunction:
    """beta H of ridge regression with ||w|| <= R: (1/2m) sum (w.x_i - y_i)^2 + (lam / 2) ||w||^2 on the ball.

    On the ball a row's gradient has norm at most a(z) = (|y| + R ||x||) ||x||, so a swap moves the minimiser
    by at most (a(z) + a(z')) / (lam m). Without the ball the residual, and with it the gradient, depends on
    all rows.

    Args:
        x_bound: B >= ||x|| of every row.
        weight_bound: R.
        strong_convexity: lam.
        m: training size.
        evaluation_lipschitz: of the evaluated loss in the prediction: 1 for the absolute, Huber and pinball
            loss.
    """
    _check(x_bound=x_bound, weight_bound=weight_bound, strong_convexity=strong_convexity, m=m)
    _check(evaluation_lipschitz=evaluation_lipschitz)
    part = _squared_gradient(evaluation_lipschitz * x_bound / (strong_convexity * m), weight_bound)
    return PairFunction(
        (part,),
        (
            f"the weights minimise the ridge objective over ||w|| <= {weight_bound:g}, with no intercept",
            f"the training objective is {strong_convexity:g}-strongly convex in all its weights",
            f"the evaluated loss is {evaluation_lipschitz:g}-Lipschitz in the prediction",
            _bounded_inputs(x_bound),
        ),
    )


def projected_sgd(
    *,
    x_bound: float,
    weight_bound: float,
    steps: Float[np.ndarray, " t"],
    m: int,
    evaluation_lipschitz: float = 1.0,
) -> PairFunction:
    """beta H of stochastic gradient descent on the halved squared loss, projected onto ||w|| <= R.

    A gradient step of a convex s-smooth loss with a step of at most 2 / s does not expand distances, nor does
    the projection, so that two trajectories part only when the swapped row is drawn: by at most eta (a(z) +
    a(z')), a(z) as for `constrained_ridge` (Hardt, Recht and Singer 2016). It is drawn at each step with
    probability 1/m, hence the bound holds for the loss averaged over the draw of the indices.

    Args:
        x_bound: B >= ||x|| of every row; the loss is B^2-smooth.
        weight_bound: R.
        steps: the step sizes eta_t.
        m: training size.
        evaluation_lipschitz: of the evaluated loss in the prediction.

    Raises:
        InputError: a step is negative or longer than 2 / B^2, or another value is out of range.
    """
    _check(x_bound=x_bound, weight_bound=weight_bound, m=m, evaluation_lipschitz=evaluation_lipschitz)
    steps = np.asarray(steps, dtype=float)
    wrong = np.flatnonzero(~((steps >= 0) & (steps <= 2 / x_bound**2)))
    if wrong.size:
        raise InputError(
            f"steps[{wrong[0]}] is {steps[wrong[0]]:g}; a step of at most 2 / x_bound^2 = {2 / x_bound**2:g} "
            "is needed, longer ones can drive two trajectories apart"
        )
    part = _squared_gradient(evaluation_lipschitz * x_bound * float(steps.sum()) / m, weight_bound)
    return PairFunction(
        (part,),
        (
            f"the weights are projected onto ||w|| <= {weight_bound:g} after every step",
            "every step draws its row uniformly, and the loss is averaged over these draws",
            f"the evaluated loss is {evaluation_lipschitz:g}-Lipschitz in the prediction",
            _bounded_inputs(x_bound),
        ),
    )


def loss_sensitivity(*, weight_bound: float, lipschitz: float = 1.0) -> PairFunction:
    """beta' G of a loss of the residual, L-Lipschitz: L (|y - y'| + R ||x - x'||).

    Args:
        weight_bound: R >= ||w|| of every trained model.
        lipschitz: L: 1 for the absolute, Huber and pinball loss.
    """
    _check(weight_bound=weight_bound, lipschitz=lipschitz)
    part = _Part(
        lipschitz,
        lambda X, y: np.abs(y) + weight_bound * np.linalg.norm(X, axis=1),
        lambda X, y, X2, y2: np.abs(y - y2) + weight_bound * np.linalg.norm(X - X2, axis=1),
    )
    return PairFunction(
        (part,),
        (f"the evaluated loss is {lipschitz:g}-Lipschitz in y - w.x, and ||w|| <= {weight_bound:g}",),
    )


@dataclass(frozen=True)
class SmootherCoefficients:
    """The gap of a linear smoother on fixed inputs under a loss that is 1-Lipschitz in the residual.

    Attributes:
        gap_scales: row i has the envelope `gap_scales[i]` |y_i - y_i'|; `scales` for `radius`.
        bias: E|y - y'| times this bounds the mean of the gap.
    """

    gap_scales: Float[np.ndarray, " m"]
    bias: float


def linear_smoother(S: Float[np.ndarray, "m m"]) -> SmootherCoefficients:
    """Ridge, kernel ridge, nearest neighbours or Nadaraya-Watson given the inputs: fitted values S y.

    The labels are the independent units, and risk means the loss of the fitted values against fresh labels at
    the same inputs. Swapping y_i moves fitted value j by |S_ji| |y_i - y_i'|: the risk by the average over j
    of that, the training risk by as much and by |y_i - y_i'| / m more. No bound on the weights is needed. The
    mean of the gap compares the loss of fitted value i at a fresh label with that at its own, which moves it
    by |S_ii| |y_i - y_i'|.

    Args:
        S: smoother matrix, a function of the inputs alone.

    Raises:
        InputError: S is not square or not finite.
    """
    S = np.asarray(S, dtype=float)
    if S.ndim != 2 or S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise InputError(f"S has shape {S.shape}; a smoother matrix on the training inputs is (m, m)")
    if not np.isfinite(S).all():
        raise InputError(f"S has {int(np.sum(~np.isfinite(S)))} entries that are not finite")
    m = S.shape[0]
    return SmootherCoefficients((2 * np.abs(S).sum(axis=0) + 1) / m, float(np.abs(np.diag(S)).sum() / m))


def _squared_gradient(coefficient: float, weight_bound: float) -> _Part:
    def norm(X: Rows, y: Values) -> Values:
        length = np.linalg.norm(X, axis=1)
        return (np.abs(y) + weight_bound * length) * length

    return _Part(coefficient, norm)


def _bounded_inputs(x_bound: float) -> str:
    return f"every input has ||x|| <= {x_bound:g}"


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value!r}; it is a positive finite number")
