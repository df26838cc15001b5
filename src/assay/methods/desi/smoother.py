"""Local Fréchet regression on a scalar index, as a fitted smoother."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from assay.methods.desi.base import BLOCK_ENTRIES
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.weights import LocalWeights, local_linear_weights

# On curved spaces every ANCHOR_STRIDE-th target along the index is solved first; the others start from these.
ANCHOR_STRIDE = 8


@dataclass(frozen=True)
class IndexSmoother:
    """Training responses along their index.

    Args:
        z: the index of the training rows, ascending.
        Y: their responses.
        bandwidth: in units of the index.
    """

    space: MetricSpace
    z: Float[np.ndarray, " n"]
    Y: Float[np.ndarray, "n ..."]
    bandwidth: float

    def predict(self, z: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m ..."]:
        """The weighted Fréchet mean at every index value."""
        order = np.argsort(z, kind="stable")
        predictions = np.empty((len(z), *self.Y.shape[1:]))
        size = max(1, BLOCK_ENTRIES // len(self.Y))
        for start in range(0, len(z), size):
            rows = order[start : start + size]
            predictions[rows] = self._means(self._weights(z[rows]).weights.numpy())
        return predictions

    def fallbacks(self) -> dict[str, int]:
        """How many training rows, left out one at a time, have no local-linear fit: `local_constant` for want
        of a slope, `nearest_neighbour` for want of neighbours.
        """
        size = max(1, BLOCK_ENTRIES // len(self.Y))
        flat = empty = 0
        for start in range(0, len(self.z), size):
            own = torch.arange(start, min(start + size, len(self.z)))
            block = self._weights(self.z[own.numpy()], own)
            flat += int(block.kernel_rows.sum())
            empty += int(block.nearest_rows.sum())
        return {"local_constant": flat, "nearest_neighbour": empty}

    def outside(self, z: Float[np.ndarray, " m"]) -> np.ndarray:
        """True where the index lies beyond the training rows' range."""
        return (z < self.z[0]) | (z > self.z[-1])

    def _weights(
        self, z: Float[np.ndarray, " m"], excluded: Int[torch.Tensor, " m"] | None = None
    ) -> LocalWeights:
        return local_linear_weights(
            torch.from_numpy(self.z), torch.from_numpy(z), self.bandwidth, excluded=excluded
        )

    def _means(self, weights: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m ..."]:
        if len(weights) <= ANCHOR_STRIDE or self.space.embed(self.Y[:1]) is not None:
            return self.space.mean(self.Y, weights)
        anchors = self.space.mean(self.Y, weights[::ANCHOR_STRIDE])
        nearest = np.minimum(
            (np.arange(len(weights)) + ANCHOR_STRIDE // 2) // ANCHOR_STRIDE, len(anchors) - 1
        )
        return self.space.mean(self.Y, weights, init=anchors[nearest])
