"""How far a learnt direction moves when the rows are resampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from assay.errors import InputError
from assay.methods.desi.index_model import Bandwidth, SharedDirection
from assay.methods.desi.metrics import angle
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.training import REFINING_LR, Rows, Schedule, train


@dataclass(frozen=True)
class DirectionBootstrap:
    """Directions fitted to bootstrap samples of the rows.

    Attributes:
        directions: unit vectors, each turned to the side of the fitted direction.
        angles: between each of them and the fitted direction, in degrees.
        cosine_stability: the mean cosine of these angles; one for a direction that never moves.
        lower, upper: percentile intervals of the coordinates. They are pointwise, and too narrow where the
            criterion has several minima, because every sample starts from the fitted direction.
        level: of the intervals.
    """

    directions: Float[np.ndarray, "n_boot p"]
    angles: Float[np.ndarray, " n_boot"]
    cosine_stability: float
    lower: Float[np.ndarray, " p"]
    upper: Float[np.ndarray, " p"]
    level: float

    def spread(self, used: Bool[np.ndarray, " p"]) -> DirectionBootstrap:
        """The same with zeros for the predictors that are not used."""

        def wide(values: np.ndarray) -> np.ndarray:
            out = np.zeros((*values.shape[:-1], len(used)))
            out[..., used] = values
            return out

        return DirectionBootstrap(
            wide(self.directions),
            self.angles,
            self.cosine_stability,
            wide(self.lower),
            wide(self.upper),
            self.level,
        )


def bootstrap_direction(
    space: MetricSpace,
    rows: Rows,
    direction: Float[np.ndarray, " p"],
    bandwidth: float,
    *,
    n_boot: int,
    level: float,
    max_epochs: int,
    seed: int,
) -> DirectionBootstrap:
    """Refit the direction to samples of the rows with replacement, from the fitted one, bandwidth held.

    A row that was drawn twice counts twice but is one row: leaving it out leaves out all of its copies, which
    would otherwise predict each other perfectly.

    Raises:
        InputError: `n_boot` is below 2, `level` not between 0 and 1, or `max_epochs` below 1.
    """
    if n_boot < 2:
        raise InputError(
            f"n_boot is {n_boot}: at least 2 bootstrap samples are needed, 200 give stable intervals"
        )
    if not 0 < level < 1:
        raise InputError(f"level is {level}: pass a number between 0 and 1, e.g. 0.95")
    if max_epochs < 1:
        raise InputError(f"max_epochs is {max_epochs}: pass a whole number >= 1")
    rng = np.random.default_rng(seed)
    n = len(rows.X)
    directions = np.empty((n_boot, len(direction)))
    for sample in directions:
        counts = np.bincount(rng.integers(n, size=n), minlength=n)
        drawn = torch.from_numpy(np.flatnonzero(counts)).to(rows.X.device)
        resampled = rows.take(drawn)._replace(counts=torch.from_numpy(counts).to(rows.X)[drawn])
        model = SharedDirection(direction).to(rows.X.device)
        held = Bandwidth(bandwidth, learnt=False).to(rows.X.device)
        train(space, model, held, resampled, None, Schedule(0.0, max_epochs, patience=10, lr=REFINING_LR))
        fitted = model.direction().detach().cpu().numpy()
        sample[:] = fitted if fitted @ direction >= 0 else -fitted
    angles = np.array([angle(sample, direction) for sample in directions])
    lower, upper = np.quantile(directions, [(1 - level) / 2, (1 + level) / 2], axis=0)
    stability = float(np.cos(np.radians(angles)).mean())
    return DirectionBootstrap(directions, angles, stability, lower, upper, level)
