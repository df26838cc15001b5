"""Private gradient descent for linear models without per-sample gradient tensors.

With the squared loss (f(z) - t)^2 and f(z) = w' z + b, a row's gradient is 2 r (z, 1): its norm is a product
of two numbers, so a step is two passes over the rows, O(n d), and needs no memory beyond them. Long trainings
run in compiled loops (`linear_loops`), short ones in NumPy, which also says what the loops compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Bool, Float

from assay.errors import InputError

Optimizer = Literal["adam", "sgd"]
# A source of so many independent standard normal numbers.
Normals = Callable[[int], Float[np.ndarray, " k"]]

# As in Opacus and PyTorch, so that trajectories agree.
NORM_OFFSET = 1e-6
BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
# Below this the corrected second moment of DP-Adam is noise.
SMALLEST_MOMENT = 1e-12
# Labels are mapped to [-1, 1].
LABEL_WIDTH = 2.0
# Steps x rows of a step x columns from which on the compiled loops are used: NumPy is done with less before
# they are loaded.
COMPILED_FROM = 10_000_000


class DivergedError(InputError):
    """The weights are not finite any more. What was spent until then is spent."""


@dataclass(frozen=True)
class LinearTraining:
    """How to train.

    Args:
        steps: of the optimiser.
        lr: learning rate.
        clip: norm to which a row's gradient over all trained numbers is clipped.
        sigma: noise multiplier; the noise on the sum of gradients has the standard deviation sigma * clip.
        optimizer: `"adam"` or `"sgd"`.
        sample_rate: probability of a row to be in a step's batch (Poisson sampling); 1 for all rows.
        fit_intercept: whether there is an intercept.
        learned_factor: starting value of a trained factor in front of the features, or None for none.
        average: return the mean of all iterates instead of the last one.
        bias_correction: subtract the noise's share from Adam's second moment.
    """

    steps: int
    lr: float
    clip: float
    sigma: float
    optimizer: Optimizer = "adam"
    sample_rate: float = 1.0
    fit_intercept: bool = True
    learned_factor: float | None = None
    average: bool = False
    bias_correction: bool = False


def label_sensitivity(
    squared_norms: Float[np.ndarray, " n"], clip: float, *, fit_intercept: bool, learned_factor: bool
) -> float:
    """The most by which a step's sum can change when one label in [-1, 1] is replaced, in units of `clip`.

    A new label moves 2 r by at most 2 * 2; the gradient's direction (z, 1) does not depend on the label, and
    clipping along a direction brings values closer together. So the change is at most
    min(2 clip, 4 |(z, 1)|) for the longest row. With a trained factor the length depends on the weights, and
    2 clip remains.

    Args:
        squared_norms: |z|^2 of the rows, which are public.
        clip: the clipping norm.
        fit_intercept: whether rows end in a 1.
        learned_factor: whether a factor is trained.
    """
    if learned_factor:
        return 2.0
    longest = math.sqrt(float(squared_norms.max()) + fit_intercept)
    return min(2.0, 2 * LABEL_WIDTH * longest / clip)


def train_linear(
    Z: Float[np.ndarray, "n d"],
    t: Float[np.ndarray, " n"],
    training: LinearTraining,
    normals: Normals,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, " d"], float]:
    """Private gradient descent from zero on the mean squared loss.

    Args:
        Z: features, already conditioned.
        t: labels.
        training: the settings.
        normals: the source of noise; each step draws it for the weights, then the intercept, then the factor.
        rng: chooses the rows of a step when they are sampled.

    Returns:
        The weights (the factor multiplied in) and the intercept, zero if none is fitted.

    Raises:
        DivergedError: the weights overflow.

    Source: section 3 (the conditioned features go through ordinary DP-SGD); Abadi et al. (2016), Algorithm 1.
    """
    n, d = Z.shape
    work = training.steps * training.sample_rate * n * d
    rows = (CompiledRows if work >= COMPILED_FROM else Rows).of(Z, t, training)
    parameters = np.zeros(d + 2)
    parameters[d + 1] = training.learned_factor or 1.0
    # The denominator is a constant: the size of a sampled batch is private.
    denominator = training.sample_rate * n
    noise_scale = training.sigma * training.clip
    step = _Update(training, noise_scale / denominator, d + 2)
    noise, total = np.zeros(d + 2), np.zeros(d + 2)
    # What overflows is found below.
    with np.errstate(over="ignore", invalid="ignore"):
        for index in range(training.steps):
            batch = rows.sampled(rng.random(n) < training.sample_rate) if training.sample_rate < 1 else rows
            gradient = batch.clipped_sum(parameters)
            if noise_scale:
                noise[:d] = normals(d)
                if training.fit_intercept:
                    noise[d] = normals(1)[0]
                if training.learned_factor is not None:
                    noise[d + 1] = normals(1)[0]
                gradient += noise_scale * noise
            gradient /= denominator
            parameters -= step(gradient)
            if not np.isfinite(parameters).all():
                raise DivergedError(
                    f"the weights are not finite after step {index + 1} of {training.steps}: lower lr "
                    f"({training.lr:g}). The whole budget counts as spent"
                )
            total += parameters
    final = total / training.steps if training.average else parameters
    return final[:d] * final[d + 1], float(final[d])


class BatchOfRows(Protocol):
    """Rows that are ready for sums of clipped gradients."""

    def sampled(self, chosen: Bool[np.ndarray, " n"]) -> BatchOfRows:
        """Some of the rows."""
        ...

    def clipped_sum(self, parameters: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """The sum of the rows' clipped gradients, by weights, intercept and factor."""
        ...


@dataclass(frozen=True)
class Rows:
    """Rows in NumPy: what is computed, without what makes it fast.

    Args:
        Z: features.
        t: labels.
        squared_norms: |z|^2.
        training: the settings.
    """

    Z: Float[np.ndarray, "n d"]
    t: Float[np.ndarray, " n"]
    squared_norms: Float[np.ndarray, " n"]
    training: LinearTraining

    @classmethod
    def of(cls, Z: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], training: LinearTraining) -> Rows:
        return cls(Z, t, np.einsum("ij,ij->i", Z, Z), training)

    def sampled(self, chosen: Bool[np.ndarray, " n"]) -> Rows:
        return Rows(self.Z[chosen], self.t[chosen], self.squared_norms[chosen], self.training)

    def clipped_sum(self, parameters: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        d = self.Z.shape[1]
        weights, intercept, factor = parameters[:d], parameters[d], parameters[d + 1]
        learned = self.training.learned_factor is not None
        projected = self.Z @ weights
        slope = 2.0 * (factor * projected - self.t + intercept)
        squared_lengths = self.squared_norms + self.training.fit_intercept
        if learned:
            squared_lengths = factor**2 * self.squared_norms + projected**2 + self.training.fit_intercept
        norms = np.abs(slope) * np.sqrt(squared_lengths)
        slope *= np.minimum(1.0, self.training.clip / (norms + NORM_OFFSET))
        gradient = np.zeros(d + 2)
        gradient[:d] = factor * (slope @ self.Z)
        if self.training.fit_intercept:
            gradient[d] = slope.sum()
        if learned:
            gradient[d + 1] = slope @ projected
        return gradient


@dataclass(frozen=True)
class CompiledRows:
    """Rows for the compiled loops.

    Where noise is added, the features are stored in single precision, rounded towards zero: a step takes as
    long as their memory is large. The lengths are those of the stored features, and every operation is in
    double precision, so that the clipping holds exactly; the model moves by far less than by the noise.

    Args:
        columns: the features as stored, column by column.
        t: labels.
        squared_norms: |z|^2 of the stored features.
        training: the settings.
        rows: the stored features row by row, where rows are sampled.
    """

    columns: Float[np.ndarray, "d n"]
    t: Float[np.ndarray, " n"]
    squared_norms: Float[np.ndarray, " n"]
    training: LinearTraining
    rows: Float[np.ndarray, "n d"] | None

    @classmethod
    def of(
        cls, Z: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], training: LinearTraining
    ) -> CompiledRows:
        from assay.methods.cond_dp.linear_loops import columns_of

        columns, squared_norms = columns_of(Z, single=training.sigma > 0)
        rows = columns.T.copy() if training.sample_rate < 1 else None
        return cls(columns, np.ascontiguousarray(t, dtype=float), squared_norms, training, rows)

    def sampled(self, chosen: Bool[np.ndarray, " n"]) -> CompiledRows:
        # From whole rows: a number from here and there in each column is a piece of memory each.
        assert self.rows is not None
        columns = self.rows[chosen].T.copy()
        return CompiledRows(columns, self.t[chosen], self.squared_norms[chosen], self.training, None)

    def clipped_sum(self, parameters: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        from assay.methods.cond_dp.linear_loops import clipped_sum

        return clipped_sum(
            self.columns,
            self.t,
            self.squared_norms,
            parameters,
            self.training.learned_factor is not None,
            self.training.fit_intercept,
            float(self.training.clip),
            NORM_OFFSET,
        )


class _Update:
    """What an optimiser subtracts from the parameters for a noisy mean gradient."""

    def __init__(self, training: LinearTraining, noise: float, size: int) -> None:
        self.training, self.noise = training, noise
        self.first, self.second, self.count = np.zeros(size), np.zeros(size), 0

    def __call__(self, gradient: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        if self.training.optimizer == "sgd":
            return self.training.lr * gradient
        self.count += 1
        self.first *= BETAS[0]
        self.first += (1 - BETAS[0]) * gradient
        self.second *= BETAS[1]
        self.second += (1 - BETAS[1]) * gradient**2
        second = self.second / (1 - BETAS[1] ** self.count)
        if self.training.bias_correction:
            # Source: Tang, Shpilevskiy and Lécuyer (2024), DP-AdamBC.
            second = np.maximum(second - self.noise**2, SMALLEST_MOMENT)
        rate = self.training.lr / (1 - BETAS[0] ** self.count)
        return rate * self.first / (np.sqrt(second) + ADAM_EPSILON)
