"""What the curved metrics on positive definite matrices share: calculus in coordinates whitened by the mean.

In both, the gradient of the weighted objective at G is a sum over the data of symmetric matrices with known
eigenvectors U_i, and its Hessian multiplies the entries of U_i' E U_i by a kernel K_i. Here E = L^-1 dG L^-T,
with the Cholesky factor L of G, is the displacement in whitened coordinates.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from jaxtyping import Float

from assay.methods.desi.spaces.karcher import GRADIENT_TOLERANCE
from assay.methods.desi.spaces.spectral import compose

TINY = np.finfo(np.float64).tiny
# How precisely the Newton equation is solved far from the optimum, and close to it.
LOOSE, TIGHT = 0.1, 1e-4
IMPLICIT_TOLERANCE = 1e-12


def factors(
    matrices: Float[np.ndarray, "*m q q"],
) -> tuple[Float[np.ndarray, "*m q q"], Float[np.ndarray, "*m q q"]]:
    """Cholesky factors L, G = L L', and their inverses; NaN for matrices that are not positive definite.

    Unlike symmetric roots they lose no digits to variables in different units: scaling a row scales L alike.
    """
    try:
        factor = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        factor = np.full(matrices.shape, np.nan)
        for index in np.ndindex(matrices.shape[:-2]):
            with suppress(np.linalg.LinAlgError):
                factor[index] = np.linalg.cholesky(matrices[index])
    return factor, np.linalg.inv(factor)


def transpose(matrices: Float[np.ndarray, "*m p q"]) -> Float[np.ndarray, "*m q p"]:
    """The transposed matrices."""
    return np.swapaxes(matrices, -1, -2)


def congruence(
    matrices: Float[np.ndarray, "*m q q"], factor: Float[np.ndarray, "*m q q"]
) -> Float[np.ndarray, "*m q q"]:
    """A M A' for the factor A, exactly symmetric."""
    product = factor @ matrices @ transpose(factor)
    return 0.5 * (product + transpose(product))


def weighted_sum(
    weights: Float[np.ndarray, "m n"],
    values: Float[np.ndarray, "m n q"],
    vectors: Float[np.ndarray, "m n q q"],
) -> Float[np.ndarray, "m q q"]:
    """sum_i w_ji U_ji diag(values_ji) U_ji'."""
    return compose(weights[:, :, None] * values, vectors).sum(axis=1)


class Hessian:
    """The Hessian E -> sum_i w_i U_i (K_i * (U_i' E U_i)) U_i' of the weighted objective at m points.

    Args:
        vectors: the eigenvectors U_i.
        kernel: the kernels K_i.
        weights: the weights w_i.
        flat: basis V (m q q) and kernel (m q q) of the Hessian that data at G itself would give, which is the
            metric in whitened coordinates; None where that is the identity.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "m n q q"],
        kernel: Float[np.ndarray, "m n q q"],
        weights: Float[np.ndarray, "m n"],
        flat: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.vectors = vectors
        self.kernel = weights[:, :, None, None] * kernel
        self.flat = flat

    def apply(self, E: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
        """H E."""
        inner = self.kernel * (transpose(self.vectors) @ E[:, None] @ self.vectors)
        return (self.vectors @ inner @ transpose(self.vectors)).sum(axis=1)

    def apply_flat(self, E: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
        """H E if all data were at G."""
        if self.flat is None:
            return E
        basis, kernel = self.flat
        return basis @ (kernel * (transpose(basis) @ E @ basis)) @ transpose(basis)

    def solve_flat(self, right: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
        """The solution of H E = R if all data were at G: for the gradient, the Karcher fixed-point step."""
        if self.flat is None:
            return right
        basis, kernel = self.flat
        return basis @ ((transpose(basis) @ right @ basis) / kernel) @ transpose(basis)

    def solve(
        self, right: Float[np.ndarray, "m q q"], tolerance: Float[np.ndarray, " m"]
    ) -> Float[np.ndarray, "m q q"]:
        """The solution of H E = R by conjugate gradients, preconditioned by `solve_flat`.

        A direction without positive curvature, which only negative weights can bring, ends the iteration of
        its row; when it is the first, the flat solution is returned. Either way <R, E> > 0.
        """
        solution, rest = np.zeros_like(right), right.copy()
        direction = self.solve_flat(rest)
        first = direction
        size = _dot(rest, direction)
        limit = np.square(tolerance)[:, None, None] * size
        q = right.shape[-1]
        for iteration in range(q * (q + 1)):
            if not (size > limit).any():
                break
            image = self.apply(direction)
            bend = _dot(direction, image)
            usable = (size > limit) & (bend > 0.0)
            length = np.where(usable, size / np.where(usable, bend, 1.0), 0.0)
            solution += length * direction
            rest -= length * image
            if iteration == 0:
                solution = np.where(usable, solution, first)
            conditioned = self.solve_flat(rest)
            smaller = _dot(rest, conditioned)
            direction = conditioned + np.where(usable, smaller / np.where(usable, size, 1.0), 0.0) * direction
            size = np.where(usable, smaller, 0.0)
        return solution

    def newton(
        self, gradient: Float[np.ndarray, "m q q"], relative: Float[np.ndarray, " m"]
    ) -> Float[np.ndarray, "m q q"]:
        """The solution of H E = gradient, as precise as the `relative` norm of the gradient deserves.

        Solving more precisely as the optimum comes near keeps the convergence superlinear (Dembo, Eisenstat
        and Steihaug 1982). Converged rows ask for nothing.
        """
        right = np.where((relative > GRADIENT_TOLERANCE)[:, None, None], gradient, 0.0)
        return self.solve(right, np.clip(relative, TIGHT, LOOSE))

    def weight_slopes(
        self, loss_gradient: Float[np.ndarray, "m q q"], residuals: Float[np.ndarray, "m n q"]
    ) -> tuple[Float[np.ndarray, "m n"], Float[np.ndarray, "m q q"]]:
        """<H^-1 loss_gradient, R_i> for R_i = U_i diag(residuals_i) U_i', and H^-1 loss_gradient."""
        solved = self.solve(loss_gradient, np.full(len(loss_gradient), IMPLICIT_TOLERANCE))
        image = solved[:, None] @ self.vectors
        return ((self.vectors * image).sum(axis=-2) * residuals).sum(axis=-1), solved


def _dot(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return (A * B).sum(axis=(-2, -1))[:, None, None]
