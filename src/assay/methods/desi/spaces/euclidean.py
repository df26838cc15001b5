"""Vectors with the Euclidean distance: the space in which Fréchet regression is ordinary regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from assay.methods.desi.spaces.validation import as_points, as_weights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Euclidean:
    """Vectors in R^d; the Fréchet mean is the weighted mean."""

    name = "euclidean"

    def check(self, Y: Any) -> Float[np.ndarray, "n d"]:
        """Finite vectors as float64; n numbers become n vectors of length one.

        Raises:
            InputError: not a matrix of finite numbers; the message names the row.
        """
        if np.ndim(Y) == 1:
            Y = np.reshape(Y, (-1, 1))
        return as_points(Y, 1, "Euclidean responses")

    def distance(
        self, A: Float[np.ndarray, "*batch d"], B: Float[np.ndarray, "*batch d"]
    ) -> Float[np.ndarray, "*batch"]:
        """|a - b|, broadcast over the leading axes."""
        return np.linalg.norm(A - B, axis=-1)

    def pairwise(self, A: Float[np.ndarray, "m d"], B: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Distances between every vector of `A` and every vector of `B`."""
        return cdist(A, B)

    def embed(self, Y: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """The vectors themselves."""
        return np.asarray(Y, dtype=np.float64)

    def mean(
        self,
        Y: Float[np.ndarray, "n d"],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m d"] | None = None,
    ) -> Float[np.ndarray, "m d"]:
        """Weighted means; `init` is not needed."""
        return as_weights(weights, len(Y)) @ Y

    def project(self, Y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """The vectors themselves."""
        return np.asarray(Y, dtype=np.float64)

    def loss(
        self, Y: Float[Tensor, "n d"], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m d"]
    ) -> Float[Tensor, " m"]:
        """Squared distances from the targets to the weighted means."""
        from assay.methods.desi.spaces.autograd import normalised

        return (targets - normalised(weights) @ Y).square().sum(dim=-1)

    def spec(self) -> dict[str, Any]:
        """`{"name": "euclidean"}`."""
        return {"name": self.name}
