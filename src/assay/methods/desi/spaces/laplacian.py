"""Weighted undirected networks as graph Laplacians."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from assay.errors import InputError
from assay.methods.desi.projection import laplacian_from_edges, laplacian_with_pullback, project_laplacian
from assay.methods.desi.spaces.spectral import (
    nonnegative_power,
    nonnegative_power_derivative,
    spectral_map,
    spectral_map_with_pullback,
    symmetric_coordinates,
)
from assay.methods.desi.spaces.validation import as_symmetric, as_weights, refuse

if TYPE_CHECKING:
    from torch import Tensor

LaplacianMetric = Literal["frobenius", "power"]

# Beside the largest entry of a Laplacian: how far a row sum may be from zero, and how negative an edge weight
# (or how far above the greatest allowed one) may be.
ROW_SUM_TOLERANCE = 1e-6
EDGE_WEIGHT_TOLERANCE = 1e-8


@dataclass(frozen=True)
class GraphLaplacian:
    """Laplacians D - E of weighted undirected graphs on q nodes, edge weights in [0, max_weight].

    With the Frobenius metric the weighted Fréchet mean is the projection of the weighted mean onto the set of
    Laplacians {L = L', L1 = 0, -max_weight <= L_kl <= 0}. With the power metric,
    d(A, B) = |A^alpha - B^alpha|_F, it is approximated as Zhou and Müller (2022) do: the weighted mean of
    powers, its negative eigenvalues set to zero, is raised to 1 / alpha and projected onto the Laplacians.

    Args:
        metric: `"frobenius"` or `"power"`.
        alpha: exponent of the power metric, > 0; the Frobenius metric does not use it.
        max_weight: largest edge weight, None for no bound.
    """

    metric: LaplacianMetric = "frobenius"
    alpha: float = 0.5
    max_weight: float | None = None

    name = "laplacian"

    def __post_init__(self) -> None:
        if self.metric not in get_args(LaplacianMetric):
            raise InputError(
                f"Laplacian metric is {self.metric!r}; choose one of {', '.join(get_args(LaplacianMetric))}"
            )
        if not 0.0 < self.alpha < np.inf:
            raise InputError(f"alpha is {self.alpha}; the exponent of the power metric must be positive")
        if self.max_weight is not None and not 0.0 < self.max_weight < np.inf:
            raise InputError(f"max_weight is {self.max_weight}; it must be positive, or None for no bound")

    def check(self, Y: Any) -> Float[np.ndarray, "n q q"]:
        """Validated Laplacians, with exact row sums.

        Raises:
            InputError: not square or symmetric, a NaN, a row that does not sum to zero, a positive entry off
                the diagonal, or an edge weight above `max_weight`; the message has the matrix and the value.
        """
        matrices = as_symmetric(Y, "graph Laplacians")
        if matrices.shape[1] < 2:
            raise InputError(f"graph Laplacians need two nodes or more; the shape is {matrices.shape}")
        scale = np.abs(matrices).max(axis=(1, 2))
        row_sum = np.abs(matrices.sum(axis=2)).max(axis=1)
        refuse(
            row_sum > ROW_SUM_TOLERANCE * scale,
            row_sum,
            "graph Laplacians: a row of matrix {row} sums to {value:.3g}; set the diagonal to "
            "the degrees (an adjacency matrix A becomes diag(A 1) - A)",
        )
        edges = -matrices * ~np.eye(matrices.shape[1], dtype=bool)
        least, largest = edges.min(axis=(1, 2)), edges.max(axis=(1, 2))
        refuse(
            least < -EDGE_WEIGHT_TOLERANCE * scale,
            -least,
            "graph Laplacians: matrix {row} has the positive entry {value:.3g} off its diagonal",
        )
        if self.max_weight is not None:
            refuse(
                largest > self.max_weight + EDGE_WEIGHT_TOLERANCE * scale,
                largest,
                f"graph Laplacians: matrix {{row}} has an edge of weight {{value:.6g}}, above "
                f"max_weight={self.max_weight}",
            )
        return laplacian_from_edges(np.clip(edges, 0.0, self.max_weight))

    def distance(
        self, A: Float[np.ndarray, "*batch q q"], B: Float[np.ndarray, "*batch q q"]
    ) -> Float[np.ndarray, "*batch"]:
        """Distances under the metric, broadcast over the leading axes."""
        return np.linalg.norm(self._powers(A) - self._powers(B), axis=(-2, -1))

    def pairwise(
        self, A: Float[np.ndarray, "m q q"], B: Float[np.ndarray, "n q q"]
    ) -> Float[np.ndarray, "m n"]:
        """Distances between every Laplacian of `A` and every Laplacian of `B`."""
        return cdist(self.embed(A), self.embed(B))

    def embed(self, Y: Float[np.ndarray, "n q q"]) -> Float[np.ndarray, "n d"]:
        """The q (q + 1) / 2 Euclidean coordinates of the matrices, or of their powers."""
        return symmetric_coordinates(self._powers(Y))

    def mean(
        self,
        Y: Float[np.ndarray, "n q q"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m q q"] | None = None,
    ) -> Float[np.ndarray, "m q q"]:
        """Weighted means projected onto the Laplacians; `init` is not needed."""
        combined = np.tensordot(as_weights(weights, len(Y)), self._powers(Y), axes=1)
        if self.metric == "power":
            combined = spectral_map(combined, nonnegative_power(1.0 / self.alpha))
        return self.project(combined)

    def project(self, Y: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
        """The nearest Laplacians in the Frobenius norm."""
        return project_laplacian(Y, self.max_weight)

    def loss(
        self, Y: Float[Tensor, "n q q"], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m q q"]
    ) -> Float[Tensor, " m"]:
        """Squared distances from the targets to the means, with the exact derivative of the projection.

        For the power metric with alpha < 1 the derivative assumes that the predicted graph is connected.
        """
        import torch

        from assay.methods.desi.spaces.autograd import differentiable, normalised

        def powers(part: Tensor) -> Tensor:
            return torch.as_tensor(self._powers(part.detach().cpu().double().numpy())).to(weights)

        combined = torch.tensordot(normalised(weights), powers(Y), dims=1)

        def power(matrices: Tensor, exponent: float) -> Tensor:
            function, derivative = nonnegative_power(exponent), nonnegative_power_derivative(exponent)
            return differentiable(
                lambda array: spectral_map_with_pullback(array, function, derivative), matrices
            )

        if self.metric == "power":
            combined = power(combined, 1.0 / self.alpha)
        mean = differentiable(lambda array: laplacian_with_pullback(array, self.max_weight), combined)
        if self.metric == "power":
            mean = power(mean, self.alpha)
        return (powers(targets) - mean).square().sum(dim=(-2, -1))

    def spec(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **asdict(self)}

    def _powers(self, L: np.ndarray) -> np.ndarray:
        if self.metric == "power":
            return spectral_map(L, nonnegative_power(self.alpha))
        return np.asarray(L, dtype=np.float64)
