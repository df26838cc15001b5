"""Private training of small networks on all rows, without per-sample gradients.

A row's gradient for a linear layer is the outer product of what comes back and what went in, so its squared
norm is |back|^2 (|in|^2 + 1), and the sum of clipped gradients is one matrix product with weighted rows: no
tensor of rows x parameters is formed (Goodfellow, 2015). Studies use it because a full batch is many times
faster than with per-sample gradients, and the trajectory is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.methods.cond_dp.linear import ADAM_EPSILON, BETAS, NORM_OFFSET, DivergedError

# A source of independent standard normal numbers of a shape.
Normals = Callable[[tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Switch:
    """Leave the conditioner after `step` steps, and go on with another learning rate.

    Source: Switch-Cond-DP in the paper; folding C into the first layer, and resetting that layer's moments,
    are ours.
    """

    step: int
    lr: float


@dataclass(frozen=True)
class NetworkTraining:
    """How to train: the settings of `linear.LinearTraining` that a network shares, and the switch."""

    steps: int
    lr: float
    clip: float
    sigma: float
    switch: Switch | None = None


@dataclass
class Network:
    """Linear layers with rectified linear units between them, and a number from the last layer's values.

    The number is v_0 + (v_1^2 - v_2^2 + ...) / 2: with one output in the last layer a multilayer
    perceptron's, with one layer of more outputs a factorisation machine's (`models.MultilayerPerceptron`,
    `models.FactorizationMachine`).

    Args:
        weights, biases: one (out, in) matrix and one (out,) vector a layer.
    """

    weights: list[Float[np.ndarray, "out in"]]
    biases: list[Float[np.ndarray, " out"]]

    @classmethod
    def initialised(cls, sizes: list[int], rng: np.random.Generator, dtype: Any = np.float32) -> Network:
        """Normal weights of deviation 1 / sqrt(in), a tenth for a factorisation machine; zero biases."""
        share = 1.0 if sizes[-1] == 1 else 0.1
        weights = [
            (rng.standard_normal((size_out, size_in)) * share * size_in**-0.5).astype(dtype)
            for size_in, size_out in pairwise(sizes)
        ]
        return cls(weights, [np.zeros(size, dtype=dtype) for size in sizes[1:]])

    def activations(self, X: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, "n width"]]:
        """What goes into each layer, and the last layer's values at the end."""
        found = [X]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = found[-1] @ weight.T + bias
            found.append(np.maximum(values, 0) if layer < len(self.weights) - 1 else values)
        return found

    def output(self, values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        """The prediction from the last layer's values."""
        squares = values[:, 1:] ** 2
        return values[:, 0] + (squares[:, ::2].sum(axis=1) - squares[:, 1::2].sum(axis=1)) / 2

    def slope(self, values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
        """The derivative of the prediction by the last layer's values."""
        slope = values.copy()
        slope[:, 0] = 1
        slope[:, 2::2] *= -1
        return slope

    def predict(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """One prediction a row."""
        return self.output(self.activations(X)[-1])


def clipped_gradient(
    network: Network, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], clip: float
) -> list[np.ndarray]:
    """The sum over rows of clipped gradients of (f(x) - t)^2: weights and biases, layer by layer."""
    inputs = network.activations(X)
    back = 2 * (network.output(inputs[-1]) - t)[:, None] * network.slope(inputs[-1])
    squared = np.zeros(len(X), dtype=X.dtype)
    backs = []
    for layer in range(len(network.weights) - 1, -1, -1):
        backs.append(back)
        squared += (back**2).sum(axis=1) * ((inputs[layer] ** 2).sum(axis=1) + 1)
        if layer:
            back = (back @ network.weights[layer]) * (inputs[layer] > 0)
    factor = np.minimum(1.0, clip / (np.sqrt(squared) + NORM_OFFSET))[:, None].astype(X.dtype)
    gradient = []
    for layer, back in enumerate(reversed(backs)):
        weighted = back * factor
        gradient += [weighted.T @ inputs[layer], weighted.sum(axis=0)]
    return gradient


def train_network(
    network: Network,
    X: Float[np.ndarray, "n d"],
    t: Float[np.ndarray, " n"],
    training: NetworkTraining,
    normals: Normals,
    conditioner: Float[np.ndarray, "d d"] | None = None,
) -> None:
    """DP-Adam on all rows; the network is changed in place, and takes unconditioned features afterwards.

    Args:
        network: as initialised, for (conditioned) features.
        X: features, not yet conditioned.
        t: labels in [-1, 1].
        training: the settings.
        normals: the source of noise, called for each weight and bias in turn.
        conditioner: the symmetric matrix that features are multiplied by, until the switch or to the end.

    Raises:
        DivergedError: the weights overflow.
    """
    mapped = X if conditioner is None else X @ conditioner
    noise, n, lr, switch = training.sigma * training.clip, len(X), training.lr, training.switch
    moments = _Moments()
    for step in range(training.steps):
        if switch is not None and step == switch.step:
            lr = switch.lr
            if conditioner is not None:
                network.weights[0] = network.weights[0] @ conditioner
                # They belong to the weights of conditioned features.
                moments.forget(0)
                mapped, conditioner = X, None
        for place, total in enumerate(clipped_gradient(network, mapped, t, training.clip)):
            if noise:
                total = total + noise * normals(total.shape).astype(total.dtype)
            layer, is_bias = divmod(place, 2)
            parameters = network.biases if is_bias else network.weights
            parameters[layer] = parameters[layer] - lr * moments.update(place, total / n)
        if not all(np.isfinite(weight).all() for weight in network.weights):
            raise DivergedError(f"the weights are not finite after step {step + 1}: lower lr ({lr:g})")
    if conditioner is not None:
        network.weights[0] = network.weights[0] @ conditioner


@dataclass
class _Moments:
    """Adam's moments of every array, each with its own count of steps."""

    first: dict[int, np.ndarray] = field(default_factory=dict)
    second: dict[int, np.ndarray] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)

    def forget(self, place: int) -> None:
        for kept in (self.first, self.second, self.count):
            kept.pop(place, None)

    def update(self, place: int, gradient: np.ndarray) -> np.ndarray:
        count = self.count.get(place, 0) + 1
        first = BETAS[0] * self.first.get(place, 0.0) + (1 - BETAS[0]) * gradient
        second = BETAS[1] * self.second.get(place, 0.0) + (1 - BETAS[1]) * gradient**2
        self.first[place], self.second[place], self.count[place] = first, second, count
        return (first / (1 - BETAS[0] ** count)) / (np.sqrt(second / (1 - BETAS[1] ** count)) + ADAM_EPSILON)
