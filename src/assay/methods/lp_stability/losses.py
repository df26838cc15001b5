"""Losses of a prediction and a label, with the constant that a certificate needs: how fast they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.errors import InputError

NAMES = ("absolute", "squared", "huber", "pinball")
Function = Callable[[Float[np.ndarray, " n"], Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]


@dataclass(frozen=True)
class Loss:
    """A loss with its Lipschitz constant.

    Args:
        name: how results call it.
        function: `(labels, predictions) -> losses`, elementwise on arrays of equal shape.
        lipschitz: the loss of two residuals differs by at most this times their distance; None when it is not
            known or, as for the squared loss, does not exist.
        convex: whether it is convex in the prediction.
    """

    name: str
    function: Function
    lipschitz: float | None = None
    convex: bool = False

    def __call__(
        self, labels: Float[np.ndarray, "*n"], predictions: Float[np.ndarray, "*n"]
    ) -> Float[np.ndarray, "*n"]:
        """The losses, of the shape to which labels and predictions broadcast.

        Raises:
            InputError: the function does not return finite numbers of that shape.
        """
        labels, predictions = np.broadcast_arrays(labels, predictions)
        values = np.asarray(self.function(labels, predictions), dtype=float)
        if values.shape != labels.shape:
            raise InputError(
                f"loss {self.name!r} returned shape {values.shape} for {labels.shape}: it must be elementwise"
            )
        if not np.isfinite(values[np.isfinite(labels) & np.isfinite(predictions)]).all():
            raise InputError(f"loss {self.name!r} is not finite for finite labels and predictions")
        return values


def as_loss(loss: str | Loss | Function) -> Loss:
    """A loss from its name or from an elementwise function of labels and predictions.

    Names: `"absolute"`, `"squared"`, `"huber"` and `"pinball"`; `"huber:1.35"` sets the threshold (default 1)
    and `"pinball:0.9"` the quantile (default 0.5).

    Raises:
        InputError: there is no such loss, or its parameter is out of range.
    """
    if isinstance(loss, Loss):
        return loss
    if callable(loss):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss)
    if not isinstance(loss, str):
        raise InputError(f"loss is {loss!r}: pass one of {', '.join(NAMES)}, or an elementwise function")
    name, _, text = loss.partition(":")
    if name not in NAMES or (text and name in ("absolute", "squared")):
        raise InputError(f"there is no loss {loss!r}: choose one of {', '.join(NAMES)}, or pass a function")
    if name == "absolute":
        return Loss(loss, lambda y, f: np.abs(y - f), lipschitz=1.0, convex=True)
    if name == "squared":
        return Loss(loss, lambda y, f: (y - f) ** 2, convex=True)
    try:
        parameter = float(text) if text else {"huber": 1.0, "pinball": 0.5}[name]
    except ValueError:
        raise InputError(f"loss {loss!r}: {text!r} is not a number") from None
    if name == "huber":
        if not 0 < parameter < np.inf:
            raise InputError(f"loss {loss!r}: the threshold must be positive")
        return Loss(loss, lambda y, f: _huber(y - f, parameter), lipschitz=parameter, convex=True)
    if not 0 < parameter < 1:
        raise InputError(f"loss {loss!r}: the quantile must lie between 0 and 1")
    return Loss(
        loss,
        lambda y, f: np.maximum(parameter * (y - f), (parameter - 1) * (y - f)),
        lipschitz=max(parameter, 1 - parameter),
        convex=True,
    )


def _huber(residual: Float[np.ndarray, " n"], threshold: float) -> Float[np.ndarray, " n"]:
    size = np.abs(residual)
    return np.where(size <= threshold, 0.5 * residual**2, threshold * (size - 0.5 * threshold))
