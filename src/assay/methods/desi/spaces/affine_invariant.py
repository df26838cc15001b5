"""Symmetric positive definite matrices with the affine-invariant metric.

d(A, B) = |log(A^-1/2 B A^-1/2)|_F, unchanged when A and B become M A M' and M B M'. The space has no positive
curvature (Pennec, Fillard and Ayache 2006; Bhatia 2007, chapter 6).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.karcher import LEAST_SPREAD, Descent
from assay.methods.desi.spaces.spectral import eigenvalues_and_vectors, spectral_map
from assay.methods.desi.spaces.whitened import (
    TINY,
    Hessian,
    congruence,
    factors,
    weighted_sum,
)


class AffineInvariant:
    """Distances, and the geometry that `karcher_mean` needs."""

    def distance(
        self, A: Float[np.ndarray, "*batch q q"], B: Float[np.ndarray, "*batch q q"]
    ) -> Float[np.ndarray, "*batch"]:
        """|log(B^-1/2 A B^-1/2)|_F, broadcast over the leading axes."""
        values = np.linalg.eigvalsh(congruence(A, factors(B)[1]))
        return np.sqrt(np.sum(np.square(_logarithm(values)), axis=-1))

    def start(
        self, Y: Float[np.ndarray, "n q q"], weights: Float[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m q q"]:
        """Log-Euclidean means, which are positive definite under negative weights too."""
        logarithms = spectral_map(Y, _logarithm)
        return spectral_map(np.tensordot(weights, logarithms, axes=1), np.exp)

    def evaluate(
        self,
        Y: Float[np.ndarray, "n q q"],
        points: Float[np.ndarray, "m q q"],
        weights: Float[np.ndarray, "m n"],
    ) -> Descent:
        """The objective, its gradient and the Newton direction."""
        factor, inverse = factors(points)
        logarithms, vectors, kernel = _whitened(Y, inverse)
        gradient = weighted_sum(weights, logarithms, vectors)
        squares = np.square(logarithms).sum(axis=-1)
        norm = np.linalg.norm(gradient, axis=(-2, -1))
        scale = (np.abs(weights) * squares).sum(axis=1) + LEAST_SPREAD
        direction = Hessian(vectors, kernel, weights).newton(gradient, norm / np.sqrt(scale))
        return Descent(
            direction=congruence(direction, factor),
            slope=(gradient * direction).sum(axis=(-2, -1)),
            norm=norm,
            objective=0.5 * (weights * squares).sum(axis=1),
            scale=scale,
        )

    def exponential(
        self, points: Float[np.ndarray, "m q q"], tangent: Float[np.ndarray, "m q q"]
    ) -> Float[np.ndarray, "m q q"]:
        """L exp(L^-1 V L^-T) L' for G = L L'; NaN where it overflows or rounding makes it singular."""
        factor, inverse = factors(points)
        moved = congruence(spectral_map(congruence(tangent, inverse), np.exp), factor)
        return np.where(np.isfinite(factors(moved)[1]), moved, np.nan)

    def weight_gradient(
        self,
        Y: Float[np.ndarray, "n q q"],
        points: Float[np.ndarray, "m q q"],
        weights: Float[np.ndarray, "m n"],
        targets: Float[np.ndarray, "m q q"],
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m n"]]:
        """Squared distances to the targets, and their derivative by the implicit-function theorem."""
        inverse = factors(points)[1]
        logarithms, vectors, kernel = _whitened(Y, inverse)
        aim = spectral_map(congruence(targets, inverse), _logarithm)
        slopes, _ = Hessian(vectors, kernel, weights).weight_slopes(aim, logarithms)
        return np.square(aim).sum(axis=(-2, -1)), -2.0 * slopes


def _logarithm(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, TINY))


def _whitened(
    Y: Float[np.ndarray, "n q q"], inverse: Float[np.ndarray, "m q q"]
) -> tuple[Float[np.ndarray, "m n q"], Float[np.ndarray, "m n q q"], Float[np.ndarray, "m n q q"]]:
    """log(L_j^-1 Y_i L_j^-T) = U diag(l) U' as l and U, and the kernel of the Hessian of d^2(Y_i, .) / 2.

    The kernel is x coth x, x = (l_a - l_b) / 2, because the curvature of the space is that of commutators.
    """
    values, vectors = eigenvalues_and_vectors(congruence(Y[None], inverse[:, None]))
    logarithms = _logarithm(values)
    half = 0.5 * (logarithms[..., :, None] - logarithms[..., None, :])
    small = np.abs(half) < 1e-4
    kernel = np.where(small, 1.0 + half**2 / 3.0, half / np.where(small, 1.0, np.tanh(half)))
    return logarithms, vectors, kernel
