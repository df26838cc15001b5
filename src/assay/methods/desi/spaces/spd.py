"""Symmetric positive definite matrices, covariances for example, under six metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from assay.errors import InputError
from assay.methods.desi.spaces.affine_invariant import AffineInvariant
from assay.methods.desi.spaces.bures import BuresWasserstein
from assay.methods.desi.spaces.karcher import karcher_loss, karcher_mean
from assay.methods.desi.spaces.spectral import (
    nonnegative_power,
    positive_part,
    positive_part_derivative,
    spectral_map,
    spectral_map_with_pullback,
    symmetric_coordinates,
)
from assay.methods.desi.spaces.validation import as_symmetric, as_weights, refuse

if TYPE_CHECKING:
    from torch import Tensor

SPDMetric = Literal["log-cholesky", "frobenius", "affine-invariant", "power", "log-euclidean", "bures"]

# The least eigenvalue that a matrix may have, beside its largest in absolute value. Where the metric needs a
# logarithm or an inverse it must be positive; where singular matrices are points too, rounding may make it a
# little negative.
LEAST_EIGENVALUE = 1e-12
SEMIDEFINITE_TOLERANCE = 1e-10
# `project` lifts eigenvalues to this much of the largest where the space has no singular points.
EIGENVALUE_FLOOR = 1e-10
# Entries of the matrices that one block of a distance matrix of a curved metric may take.
BLOCK_FLOATS = 4_194_304

_CURVED = {"affine-invariant": AffineInvariant(), "bures": BuresWasserstein()}
_SINGULAR_ALLOWED = ("frobenius", "power")


@dataclass(frozen=True)
class SPD:
    """Symmetric positive definite q x q matrices.

    | metric | distance | weighted Fréchet mean |
    | --- | --- | --- |
    | log-cholesky | Euclidean in the Cholesky factor with log-diagonal (Lin 2019) | closed form |
    | log-euclidean | Frobenius of matrix logarithms (Arsigny et al. 2007) | closed form |
    | frobenius | Frobenius | mean, negative eigenvalues set to zero |
    | power | Frobenius of S^alpha, divided by alpha (Dryden et al. 2009) | as frobenius, in powers |
    | affine-invariant | Frobenius of log(A^-1/2 B A^-1/2) | Karcher iteration |
    | bures | 2-Wasserstein of centred normals with these covariances | transport-map iteration |

    Singular matrices are points under `frobenius` and `power` only.

    Args:
        metric: one of the above.
        alpha: exponent of the power metric, > 0; the other metrics do not use it.
    """

    metric: SPDMetric = "log-cholesky"
    alpha: float = 0.5

    name = "spd"

    def __post_init__(self) -> None:
        if self.metric not in get_args(SPDMetric):
            raise InputError(f"SPD metric is {self.metric!r}; choose one of {', '.join(get_args(SPDMetric))}")
        if not 0.0 < self.alpha < np.inf:
            raise InputError(f"alpha is {self.alpha}; the exponent of the power metric must be positive")

    def check(self, Y: Any) -> Float[np.ndarray, "n q q"]:
        """Validated matrices, exactly symmetric.

        Raises:
            InputError: not square, not symmetric, a NaN, or an eigenvalue that is too small; the message
                names the row and the eigenvalue.
        """
        matrices = as_symmetric(Y, "SPD matrices")
        values = np.linalg.eigvalsh(matrices)
        least, largest = values[:, 0], np.abs(values).max(axis=1)
        if self.metric in _SINGULAR_ALLOWED:
            message = "SPD matrices: row {row} has the negative eigenvalue {value:.3g}; "
            refuse(
                least < -SEMIDEFINITE_TOLERANCE * largest,
                least,
                message + "project() gives the nearest point",
            )
            return matrices if (least >= 0.0).all() else self.project(matrices)
        message = (
            "SPD matrices: row {row} is not positive definite (least eigenvalue {value:.3g}); add a ridge"
        )
        refuse(
            least <= LEAST_EIGENVALUE * largest,
            least,
            f"{message}, or use a metric that admits singular matrices ({' or '.join(_SINGULAR_ALLOWED)})",
        )
        return matrices

    def distance(
        self, A: Float[np.ndarray, "*batch q q"], B: Float[np.ndarray, "*batch q q"]
    ) -> Float[np.ndarray, "*batch"]:
        """Distances under the metric, broadcast over the leading axes."""
        if self.metric in _CURVED:
            return _CURVED[self.metric].distance(A, B)
        return np.linalg.norm(self._coordinates(A) - self._coordinates(B), axis=(-2, -1))

    def pairwise(
        self, A: Float[np.ndarray, "m q q"], B: Float[np.ndarray, "n q q"]
    ) -> Float[np.ndarray, "m n"]:
        """Distances between every matrix of `A` and every matrix of `B`."""
        if self.metric not in _CURVED:
            return cdist(self._vectors(A), self._vectors(B))
        size = max(1, BLOCK_FLOATS // max(1, B.size))
        blocks = [self.distance(A[k : k + size, None], B[None]) for k in range(0, len(A), size)]
        return np.concatenate(blocks) if blocks else np.empty((0, len(B)))

    def embed(self, Y: Float[np.ndarray, "n q q"]) -> Float[np.ndarray, "n d"] | None:
        """The q (q + 1) / 2 Euclidean coordinates of the metric; None for affine-invariant and bures."""
        return None if self.metric in _CURVED else self._vectors(Y)

    def mean(
        self,
        Y: Float[np.ndarray, "n q q"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m q q"] | None = None,
    ) -> Float[np.ndarray, "m q q"]:
        """Weighted Fréchet means; `init` starts the two iterative metrics.

        Raises:
            InputError: malformed weights, or an iterative mean that does not converge.
        """
        if self.metric in _CURVED:
            return karcher_mean(_CURVED[self.metric], Y, weights, init)
        combined = np.tensordot(as_weights(weights, len(Y)), self._coordinates(Y), axes=1)
        return self._from_coordinates(combined)

    def project(self, Y: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
        """The nearest points in the Frobenius norm: negative eigenvalues become zero.

        Where the metric has no singular points, they become `EIGENVALUE_FLOOR` of the largest one.
        """
        floor = 0.0 if self.metric in _SINGULAR_ALLOWED else EIGENVALUE_FLOOR
        matrices = 0.5 * (Y + np.swapaxes(Y, -1, -2))
        values = np.linalg.eigvalsh(matrices)
        least = floor * np.abs(values).max(axis=-1)
        inside = values[..., 0] >= least
        clipped = spectral_map(
            matrices, lambda values: np.maximum(values, floor * np.abs(values).max(axis=-1, keepdims=True))
        )
        return np.where(inside[..., None, None], matrices, clipped)

    def loss(
        self, Y: Float[Tensor, "n q q"], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m q q"]
    ) -> Float[Tensor, " m"]:
        """Squared distances from the targets to the weighted means, differentiable in `weights`.

        Exact for all metrics: through the Euclidean coordinates and the derivative of the eigenvalue clipping
        for four of them, by the implicit-function theorem at the mean for the other two.
        """
        if self.metric in _CURVED:
            return karcher_loss(_CURVED[self.metric], Y, weights, targets)
        import torch

        from assay.methods.desi.spaces.autograd import differentiable, normalised

        def coordinates(part: Tensor) -> Tensor:
            return torch.as_tensor(self._coordinates(part.detach().cpu().double().numpy())).to(weights)

        combined = torch.tensordot(normalised(weights), coordinates(Y), dims=1)
        if self.metric in _SINGULAR_ALLOWED:
            combined = differentiable(
                lambda array: spectral_map_with_pullback(array, positive_part, positive_part_derivative),
                combined,
            )
        return (coordinates(targets) - combined).square().sum(dim=(-2, -1))

    def spec(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **asdict(self)}

    def _vectors(self, S: np.ndarray) -> Float[np.ndarray, "n d"]:
        coordinates = self._coordinates(S)
        if self.metric == "log-cholesky":
            rows, columns = np.tril_indices(S.shape[-1])
            return coordinates[..., rows, columns]
        return symmetric_coordinates(coordinates)

    def _coordinates(self, S: np.ndarray) -> np.ndarray:
        """Matrices whose Frobenius distance is the distance of the metric."""
        if self.metric == "log-cholesky":
            return _log_cholesky(S)
        if self.metric == "log-euclidean":
            return spectral_map(S, np.log)
        if self.metric == "power":
            return spectral_map(S, nonnegative_power(self.alpha)) / self.alpha
        return np.asarray(S, dtype=np.float64)

    def _from_coordinates(self, coordinates: np.ndarray) -> np.ndarray:
        """The nearest points to the coordinates."""
        if self.metric == "log-cholesky":
            return _from_log_cholesky(coordinates)
        inverse: Callable[[np.ndarray], np.ndarray] = positive_part
        if self.metric == "log-euclidean":
            inverse = np.exp
        elif self.metric == "power":
            power = nonnegative_power(1.0 / self.alpha)
            return spectral_map(self.alpha * coordinates, power)
        return spectral_map(coordinates, inverse)


def _log_cholesky(S: np.ndarray) -> np.ndarray:
    factor = np.linalg.cholesky(S)
    diagonal = np.arange(S.shape[-1])
    factor[..., diagonal, diagonal] = np.log(factor[..., diagonal, diagonal])
    return factor


def _from_log_cholesky(coordinates: np.ndarray) -> np.ndarray:
    factor = coordinates.copy()
    diagonal = np.arange(factor.shape[-1])
    factor[..., diagonal, diagonal] = np.exp(factor[..., diagonal, diagonal])
    product = factor @ np.swapaxes(factor, -1, -2)
    return 0.5 * (product + np.swapaxes(product, -1, -2))
