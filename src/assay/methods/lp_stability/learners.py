"""Which learners have an envelope that holds for every sample, and which constants it needs."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.methods.lp_stability.analytic import (
    WITHOUT_ENVELOPE,
    PairFunction,
    constrained_ridge,
    linear_smoother,
    loss_sensitivity,
    regularised_erm,
)
from assay.methods.lp_stability.assumptions import Assumptions
from assay.methods.lp_stability.ball_ridge import BallRidge
from assay.methods.lp_stability.envelopes import AssumptionViolated
from assay.methods.lp_stability.losses import Loss
from assay.methods.lp_stability.refit import fitted_clone

# Residuals at which a declared Lipschitz constant is tried.
LIPSCHITZ_TRIALS = 2000


@dataclass(frozen=True)
class RandomDesign:
    """A linear learner whose swap effect is bounded by the two rows that are swapped.

    Attributes:
        conditional: why this is conditional on more than declared constants of the data; empty where it
            isn't.
        stability: beta H of a pair of rows: how far the loss at any point moves.
        sampling: beta' G / m: how far the average of the losses moves because one of its rows moved.
    """

    conditional: str
    stability: PairFunction
    sampling: PairFunction

    @property
    def effects(self) -> tuple[PairFunction, PairFunction, PairFunction]:
        """The envelope of the gap, 2 beta H + beta' G / m, and its two parts."""
        return 2 * self.stability + self.sampling, 2 * self.stability, self.sampling

    @property
    def assumed(self) -> tuple[str, ...]:
        """What has to hold, in words."""
        return (*self.effects[0].assumptions, *((self.conditional,) if self.conditional else ()))


@dataclass(frozen=True)
class FixedDesign:
    """A linear smoother S: fitted values S y at fixed predictors, independent labels.

    Attributes:
        scales: of the effect of replacing label i on the gap, per unit of |y_i - y_i'|.
        stability_scales: the part that comes from the smoother.
        bias: bound of E[risk - training risk] per unit of E|y - y'|.
        assumed: what has to hold, in words.
    """

    scales: Float[np.ndarray, " m"]
    stability_scales: Float[np.ndarray, " m"]
    bias: float
    assumed: tuple[str, ...]


def match_learner(
    estimator: Any,
    fitted: Any,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    loss: Loss,
    assumptions: Assumptions,
) -> RandomDesign | FixedDesign | str:
    """The envelope of a learner under what is declared, or the reason why it has none.

    Raises:
        AssumptionViolated: a declared constant contradicts the learner, its fit or the loss.
    """
    lipschitz = loss.lipschitz if assumptions.lipschitz is None else assumptions.lipschitz
    if loss.lipschitz is not None and lipschitz is not None and lipschitz < loss.lipschitz:
        raise AssumptionViolated(
            f"assumption lipschitz={lipschitz:g} is below the constant {loss.lipschitz:g} of the loss "
            f"{loss.name!r}"
        )
    if lipschitz is None:
        return (
            f"the loss {loss.name!r} has no known Lipschitz constant in the residual: choose absolute, huber "
            "or pinball, or declare lipschitz"
        )
    if loss.lipschitz is None:
        _check_lipschitz(loss, lipschitz, fitted.predict(X), y)
    if assumptions.fixed_design:
        return _fixed_design(estimator, fitted, X, y, lipschitz)
    return _random_design(estimator, fitted, X, lipschitz, assumptions)


def _random_design(
    estimator: Any, fitted: Any, X: Float[np.ndarray, "m d"], lipschitz: float, assumptions: Assumptions
) -> RandomDesign | str:
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor, RadiusNeighborsRegressor
    from sklearn.svm import LinearSVR

    m = len(X)
    if isinstance(estimator, (KNeighborsRegressor, RadiusNeighborsRegressor)):
        return WITHOUT_ENVELOPE["knn"]
    if type(estimator) is BallRidge:
        radius = float(estimator.radius)
        if assumptions.weight_bound is not None and assumptions.weight_bound < radius:
            raise AssumptionViolated(
                f"assumption weight_bound={assumptions.weight_bound:g} is below the radius {radius:g} of the "
                "ball"
            )
        return _ridge(estimator.alpha / m, radius, m, lipschitz, assumptions, conditional="")
    if type(estimator) is Ridge:
        if assumptions.weight_bound is None:
            return WITHOUT_ENVELOPE["ridge"]
        if estimator.fit_intercept:
            return "its intercept is not penalised: use fit_intercept=False and a constant column"
        if not (isinstance(estimator.alpha, Real) and estimator.alpha > 0):
            return f"alpha={estimator.alpha!r} does not make the objective strongly convex"
        _check_weights(fitted, assumptions.weight_bound)
        bound = assumptions.weight_bound
        why = f"plain ridge keeps ||w|| <= {bound:g} on every sample, which only BallRidge ensures"
        return _ridge(float(estimator.alpha) / m, bound, m, lipschitz, assumptions, conditional=why)
    if (
        type(estimator) is LinearSVR
        and estimator.loss == "epsilon_insensitive"
        and not estimator.fit_intercept
    ):
        return _erm(fitted, 1 / (estimator.C * m), 1.0, m, lipschitz, assumptions, "LinearSVR's solver")
    if assumptions.strong_convexity is not None and assumptions.training_lipschitz is not None:
        name = type(estimator).__name__
        return _erm(
            fitted,
            assumptions.strong_convexity,
            assumptions.training_lipschitz,
            m,
            lipschitz,
            assumptions,
            name,
        )
    return (
        f"no envelope is known for {type(estimator).__name__}: use BallRidge, or declare strong_convexity "
        "and training_lipschitz of a linear learner"
    )


def _ridge(
    strong_convexity: float,
    weight_bound: float,
    m: int,
    lipschitz: float,
    assumptions: Assumptions,
    *,
    conditional: str,
) -> RandomDesign | str:
    bound = assumptions.x_bound
    if bound is None:
        return "declare x_bound, a bound of ||x|| for every row"
    stability = constrained_ridge(
        x_bound=bound,
        weight_bound=weight_bound,
        strong_convexity=strong_convexity,
        m=m,
        evaluation_lipschitz=lipschitz,
    )
    sensitivity = loss_sensitivity(weight_bound=weight_bound, lipschitz=lipschitz)
    return RandomDesign(conditional, stability, sensitivity / m)


def _erm(
    fitted: Any,
    strong_convexity: float,
    training_lipschitz: float,
    m: int,
    lipschitz: float,
    assumptions: Assumptions,
    solver: str,
) -> RandomDesign | str:
    bound = assumptions.x_bound
    if bound is None:
        return "declare x_bound, a bound of ||x|| for every row"
    if not hasattr(fitted, "coef_") or np.any(getattr(fitted, "intercept_", 0.0)):
        return (
            "only linear learners without an intercept have this envelope: append a constant column instead"
        )
    # The objective's optimality condition keeps the coefficients in this ball on every sample.
    weight_bound = training_lipschitz * bound / strong_convexity
    if assumptions.weight_bound is not None:
        weight_bound = min(weight_bound, assumptions.weight_bound)
    _check_weights(fitted, weight_bound)
    stability = regularised_erm(
        lipschitz=training_lipschitz,
        x_bound=bound,
        strong_convexity=strong_convexity,
        m=m,
        evaluation_lipschitz=lipschitz,
    )
    conditional = f"{solver} returns the exact minimiser of such an objective"
    sensitivity = loss_sensitivity(weight_bound=weight_bound, lipschitz=lipschitz)
    return RandomDesign(conditional, stability, sensitivity / m)


def _fixed_design(
    estimator: Any, fitted: Any, X: Float[np.ndarray, "m d"], y: Float[np.ndarray, " m"], lipschitz: float
) -> FixedDesign | str:
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.neighbors import KNeighborsRegressor

    if type(estimator) not in (Ridge, LinearRegression, KernelRidge, KNeighborsRegressor):
        return f"{type(estimator).__name__} is not known to be linear in the labels"
    # Fitting to the unit vectors gives the columns of the smoother.
    smoother = np.asarray(fitted_clone(estimator, X, np.eye(len(X))).predict(X))
    fitted_values = fitted.predict(X)
    if np.abs(smoother @ y - fitted_values).max() > 1e-6 * max(1.0, np.abs(y).max()):
        return f"{type(estimator).__name__} with these settings is not linear in the labels"
    coefficients = linear_smoother(smoother)
    return FixedDesign(
        scales=lipschitz * coefficients.gap_scales,
        stability_scales=lipschitz * (coefficients.gap_scales - 1 / len(X)),
        bias=lipschitz * coefficients.bias,
        assumed=("the predictors are fixed and the labels independent",),
    )


def _check_weights(fitted: Any, weight_bound: float) -> None:
    norm = float(np.linalg.norm(fitted.coef_))
    if norm > weight_bound * (1 + 1e-9):
        raise AssumptionViolated(
            f"the fitted coefficients have the norm {norm:.6g}, beyond the bound {weight_bound:g} that holds "
            "for every sample if the assumptions do"
        )


def _check_lipschitz(
    loss: Loss, lipschitz: float, predictions: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]
) -> None:
    """Try a declared constant at random predictions and labels of the data's size."""
    rng = np.random.default_rng(0)
    first, second = rng.choice(predictions, LIPSCHITZ_TRIALS), rng.choice(predictions, LIPSCHITZ_TRIALS)
    labels, others = rng.choice(y, LIPSCHITZ_TRIALS), rng.choice(y, LIPSCHITZ_TRIALS)
    moved = np.abs(loss(labels, first) - loss(others, second))
    residual = np.abs(labels - first - (others - second))
    worst = int((moved - lipschitz * residual).argmax())
    if moved[worst] > lipschitz * residual[worst] * (1 + 1e-9) + 1e-12:
        raise AssumptionViolated(
            f"assumption lipschitz={lipschitz:g} is violated: the loss {loss.name!r} moves by "
            f"{moved[worst]:.6g} between residuals that are {residual[worst]:.6g} apart"
        )
