"""Symmetric positive definite matrices with the Bures-Wasserstein metric.

d^2(A, B) = tr A + tr B - 2 tr (A^1/2 B A^1/2)^1/2, the squared 2-Wasserstein distance of centred normal
distributions with these covariances (Bhatia, Jain and Lim 2019).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.karcher import Descent
from assay.methods.desi.spaces.spectral import (
    compose,
    nonnegative_power,
    spectral_map,
)
from assay.methods.desi.spaces.whitened import (
    TINY,
    Hessian,
    congruence,
    factors,
    transpose,
    weighted_sum,
)


class BuresWasserstein:
    """Distances, and the geometry that `karcher_mean` needs.

    A tangent vector at G is kept as the symmetric matrix X of the transport map I + X that carries N(0, G)
    to its destination. The mean solves sum_i w_i T_i = I with the transport maps T_i to the data. The
    fixed-point iteration of Álvarez-Esteban et al. (2016) steps along X = sum_i w_i T_i - I, which is the
    first iterate for the Newton step taken here. Heavy negative weights can put the minimum on the singular
    matrices, where the gradient does not vanish and `karcher_mean` falls back to weights >= 0.
    """

    def distance(
        self, A: Float[np.ndarray, "*batch q q"], B: Float[np.ndarray, "*batch q q"]
    ) -> Float[np.ndarray, "*batch"]:
        """min over orthogonal Q of |L_A - L_B Q|_F, with Cholesky factors: the same, without cancellation."""
        left, right = factors(A)[0], factors(B)[0]
        outer, _, inner = np.linalg.svd(transpose(right) @ left)
        return np.linalg.norm(left - right @ (outer @ inner), axis=(-2, -1))

    def start(
        self, Y: Float[np.ndarray, "n q q"], weights: Float[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m q q"]:
        """Squared weighted means of the square roots, kept positive definite."""
        means = np.tensordot(weights, spectral_map(Y, nonnegative_power(0.5)), axes=1)
        floor = 1e-3 * np.sqrt(np.trace(Y, axis1=1, axis2=2).mean() / Y.shape[-1])
        return spectral_map(means, lambda values: np.maximum(values, floor) ** 2)

    def evaluate(
        self,
        Y: Float[np.ndarray, "n q q"],
        points: Float[np.ndarray, "m q q"],
        weights: Float[np.ndarray, "m n"],
    ) -> Descent:
        """The objective, its gradient and the Newton direction."""
        factor, inverse = factors(points)
        values, vectors, hessian = _whitened(Y, factor, weights)
        gradient = weighted_sum(weights, values, vectors) - transpose(factor) @ factor
        traces = np.trace(points, axis1=1, axis2=2)[:, None] + np.trace(Y, axis1=1, axis2=2)[None, :]
        # The norm of the metric, |V|_G^2 = tr(X G X) for V = X G + G X, where the gradient is L' X L.
        norm = np.linalg.norm(transpose(inverse) @ gradient, axis=(-2, -1))
        scale = (np.abs(weights) * traces).sum(axis=1)
        direction = hessian.newton(gradient, norm / np.sqrt(scale))
        return Descent(
            direction=congruence(hessian.apply_flat(direction), transpose(inverse)),
            slope=0.5 * (gradient * direction).sum(axis=(-2, -1)),
            norm=norm,
            objective=0.5 * (weights * (traces - 2.0 * values.sum(axis=-1))).sum(axis=1),
            scale=scale,
        )

    def exponential(
        self, points: Float[np.ndarray, "m q q"], tangent: Float[np.ndarray, "m q q"]
    ) -> Float[np.ndarray, "m q q"]:
        """(I + X) G (I + X) for the transport map I + X."""
        return congruence(points, np.eye(points.shape[-1]) + tangent)

    def weight_gradient(
        self,
        Y: Float[np.ndarray, "n q q"],
        points: Float[np.ndarray, "m q q"],
        weights: Float[np.ndarray, "m n"],
        targets: Float[np.ndarray, "m q q"],
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m n"]]:
        """Squared distances to the targets, and their derivative by the implicit-function theorem."""
        factor = factors(points)[0]
        square = transpose(factor) @ factor
        values, _, hessian = _whitened(Y, factor, weights)
        aim = square - compose(*_products(factors(targets)[0], factor))
        slopes, solved = hessian.weight_slopes(aim, values)
        slopes -= (solved * square).sum(axis=(-2, -1))[:, None]
        return np.square(self.distance(points, targets)), slopes


def _products(
    left: Float[np.ndarray, "*m q q"], right: Float[np.ndarray, "*m q q"]
) -> tuple[Float[np.ndarray, "*m q"], Float[np.ndarray, "*m q q"]]:
    """Eigenvalues and eigenvectors of (R' A R)^1/2 for A = L L'.

    They are the singular values and vectors of L' R; taken so, small eigenvalues keep their digits.
    """
    product = transpose(left) @ right
    finite = np.all(np.isfinite(product), axis=(-2, -1))
    _, values, vectors = np.linalg.svd(np.where(finite[..., None, None], product, 0.0))
    return np.where(finite[..., None], values, np.nan), transpose(vectors)


def _kernel(values: Float[np.ndarray, "*m q"]) -> Float[np.ndarray, "*m q q"]:
    """mu_a mu_b / (mu_a + mu_b)."""
    values = np.maximum(values, TINY)
    return values[..., :, None] * values[..., None, :] / (values[..., :, None] + values[..., None, :])


def _whitened(
    Y: Float[np.ndarray, "n q q"], factor: Float[np.ndarray, "m q q"], weights: Float[np.ndarray, "m n"]
) -> tuple[Float[np.ndarray, "m n q"], Float[np.ndarray, "m n q q"], Hessian]:
    """(L_j' Y_i L_j)^1/2 = U diag(mu) U' as mu and U, and the Hessian of sum_i w_i d^2(Y_i, .).

    The derivative of d^2(Y_i, .) at G = L L' is I - T with the transport map T to Y_i, and L' T L is the
    matrix above. Differentiating T G T = Y_i gives the kernel.
    """
    values, vectors = _products(factors(Y)[0][None], factor[:, None])
    own_values, own_vectors = _products(factor, factor)
    return values, vectors, Hessian(vectors, _kernel(values), weights, (own_vectors, _kernel(own_values)))
