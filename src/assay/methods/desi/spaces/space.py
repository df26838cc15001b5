"""What a metric space offers, so that the estimators of this folder can regress its points on predictors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class MetricSpace(Protocol):
    """A metric space whose points are arrays of one shape.

    Weighted Fréchet means minimise `o -> sum_i w_i d^2(Y_i, o)` over the space. The weights of local and
    global Fréchet regression sum to one and may be negative; weights with another positive sum are divided by
    it. All methods but `check` take points of the space and do not check them again.
    """

    name: str

    def check(self, Y: Any) -> Float[np.ndarray, "n ..."]:
        """Validated points as float64.

        Raises:
            InputError: a point is not in the space; the message names its row, the violated condition with
                its value, and the remedy.
        """
        ...

    def distance(
        self, A: Float[np.ndarray, "*any"], B: Float[np.ndarray, "*any"]
    ) -> Float[np.ndarray, "*batch"]:
        """Distances between points, broadcast over the leading axes."""
        ...

    def pairwise(
        self, A: Float[np.ndarray, "m ..."], B: Float[np.ndarray, "n ..."]
    ) -> Float[np.ndarray, "m n"]:
        """Distances between every point of `A` and every point of `B`."""
        ...

    def embed(self, Y: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n dim"] | None:
        """Coordinates in which the distance is Euclidean, or None where no such coordinates exist."""
        ...

    def mean(
        self,
        Y: Float[np.ndarray, "n ..."],
        weights: Float[np.ndarray, "m n"],
        init: Float[np.ndarray, "m ..."] | None = None,
    ) -> Float[np.ndarray, "m ..."]:
        """The weighted Fréchet mean of `Y` for every row of weights; `init` starts an iterative solver.

        Raises:
            InputError: weights of another shape, with a NaN or without a positive sum, or no convergence.
        """
        ...

    def project(self, Y: Float[np.ndarray, "m ..."]) -> Float[np.ndarray, "m ..."]:
        """The nearest points of the space."""
        ...

    def loss(
        self, Y: Float[Tensor, "n ..."], weights: Float[Tensor, "m n"], targets: Float[Tensor, "m ..."]
    ) -> Float[Tensor, " m"]:
        """d^2(target_j, mean(Y, weights_j)) for every j, differentiable (once) in `weights`, not in the rest.

        A row of weights with a NaN gives NaN, so that a training loop can skip the step.
        """
        ...

    def spec(self) -> dict[str, Any]:
        """The space as JSON values; `space_from_spec` is the inverse where one exists."""
        ...
