"""The authors' published algorithm, kept for comparison: a direction for every row, fitted in mini-batches.

Its difference from a single-index model is deliberate: z_i = theta(x_i)' x_i with a network theta, so that
two rows with the same response need not share a direction. Every row's own response takes part in its fitted
value. Not kept is the published driver's reference to, instead of a copy of, its best state.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.methods.desi.index_model import PerSampleDirection, direction_network
from assay.methods.desi.spaces import SPD, Composition, GraphLaplacian, Sphere, Wasserstein1D
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.training import Rows, Training
from assay.methods.desi.weights import local_linear_weights

BATCH = 64


@dataclass(frozen=True)
class PublishedSettings:
    """The authors' hyper-parameters for one family of spaces.

    Args:
        lr, weight_decay: of Adam.
        lr_step: epochs after which the learning rate is halved, again and again; None for never.
        gradient_norm: the norm at which gradients are clipped; None for no clipping.
        dropout: the network's.
        bandwidth: the first bandwidth, with the bounds that it is clamped to.
        lam: the weight of 1/bandwidth.
        max_epochs, patience: as in `training.Schedule`, in epochs over mini-batches.
        squared: the loss is the mean squared distance over the Fréchet variance, else the mean distance over
            the mean distance to the Fréchet mean.
        validate_by_self_fit: validation rows are smoothed among themselves, else predicted from the training
            rows.
    """

    lr: float
    weight_decay: float
    lr_step: int | None
    gradient_norm: float | None
    dropout: float
    bandwidth: float
    bandwidth_bounds: tuple[float, float]
    lam: float
    max_epochs: int
    patience: int
    squared: bool
    validate_by_self_fit: bool


DISTRIBUTIONS = PublishedSettings(
    lr=0.01,
    weight_decay=1e-4,
    lr_step=100,
    gradient_norm=None,
    dropout=0.3,
    bandwidth=0.1,
    bandwidth_bounds=(0.01, math.inf),
    lam=5e-4,
    max_epochs=10_000,
    patience=10,
    squared=True,
    validate_by_self_fit=False,
)
MATRICES = PublishedSettings(
    lr=0.1,
    weight_decay=1e-3,
    lr_step=None,
    gradient_norm=1.0,
    dropout=0.2,
    bandwidth=0.5,
    bandwidth_bounds=(0.1, 1.0),
    lam=0.01,
    max_epochs=1000,
    patience=5,
    squared=False,
    validate_by_self_fit=True,
)
NETWORKS = replace(MATRICES, lr=0.5)
SPHERES = replace(NETWORKS, gradient_norm=None, bandwidth_bounds=(0.2, 50.0))


def published_settings(space: MetricSpace) -> PublishedSettings:
    """The settings of the family that `space` belongs to; those for distributions where the authors have
    none.
    """
    if isinstance(space, GraphLaplacian):
        return NETWORKS
    if isinstance(space, SPD):
        return MATRICES
    if isinstance(space, Sphere | Composition):
        return SPHERES
    return DISTRIBUTIONS


class ClampedBandwidth(nn.Module):
    """A free bandwidth, clamped to its bounds where it is used."""

    def __init__(self, start: float, bounds: tuple[float, float]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.bounds = bounds

    def forward(self) -> Float[Tensor, ""]:
        return self.raw.clamp(*self.bounds)


def train_per_sample(
    space: MetricSpace,
    rows: Rows,
    validation: Rows | None,
    settings: PublishedSettings,
    hidden: int,
    seed: int,
) -> Training[PerSampleDirection]:
    """Train the network of directions and the bandwidth on mini-batches, each smoothed within itself.

    Without validation rows the mean loss of an epoch is monitored.
    """
    generator = torch.Generator(device=rows.X.device).manual_seed(seed)
    network = direction_network(rows.X.shape[1], hidden, settings.dropout, generator)
    model = PerSampleDirection(network.to(rows.X.device))
    bandwidth = ClampedBandwidth(settings.bandwidth, settings.bandwidth_bounds).to(rows.X.device)
    optimizer = torch.optim.Adam(
        [*model.parameters(), *bandwidth.parameters()], lr=settings.lr, weight_decay=settings.weight_decay
    )
    fitting = _Fit(space, rows, settings)
    result = Training(model, bandwidth)
    best_state, best_epoch = copy.deepcopy((model.state_dict(), bandwidth.state_dict())), 0
    shuffler = np.random.default_rng(seed)
    for epoch in range(settings.max_epochs):
        if settings.lr_step and epoch and epoch % settings.lr_step == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        model.train()
        result.losses.append(_epoch(fitting, model, bandwidth, optimizer, shuffler))
        monitored = result.losses[-1]
        if validation is not None:
            model.eval()
            with torch.no_grad():
                monitored = fitting.validate(model, bandwidth(), validation).item()
            result.validation_losses.append(monitored)
        if monitored < result.best - 1e-4:
            best_state = copy.deepcopy((model.state_dict(), bandwidth.state_dict()))
            result.best, best_epoch = monitored, epoch
        elif epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(best_state[0])
    bandwidth.load_state_dict(best_state[1])
    model.eval()
    return result


@dataclass(frozen=True)
class PerSampleIndex:
    """A fitted network of directions as plain arrays, so that it can be pickled and written to a file.

    Args:
        state: the network's parameters by name.
    """

    state: dict[str, np.ndarray]

    @classmethod
    def from_model(cls, model: PerSampleDirection) -> PerSampleIndex:
        return cls({name: value.cpu().numpy().copy() for name, value in model.network.state_dict().items()})

    def directions(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m p"]:
        """The unit vector of every row, its first coordinate not negative."""
        with torch.no_grad():
            return self._model().directions(torch.from_numpy(X)).numpy()

    def index(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, " m"]:
        """theta(x)' x for every row x."""
        with torch.no_grad():
            return self._model()(torch.from_numpy(X)).numpy()

    def _model(self) -> PerSampleDirection:
        hidden, n_predictors = self.state["0.weight"].shape
        # The weights that are drawn here are replaced at once.
        network = direction_network(n_predictors, hidden, 0.0, torch.Generator())
        network.load_state_dict({name: torch.from_numpy(value) for name, value in self.state.items()})
        return PerSampleDirection(network).eval()


class _Fit:
    """The loss of the published algorithm on a batch, in its own units."""

    def __init__(self, space: MetricSpace, rows: Rows, settings: PublishedSettings) -> None:
        self.space, self.rows, self.squared = space, rows, settings.squared
        self.lam, self.by_self_fit = settings.lam, settings.validate_by_self_fit
        self.gradient_norm = settings.gradient_norm
        Y = rows.Y.cpu().numpy()
        mean = space.mean(Y, np.full((1, len(Y)), 1 / len(Y)))
        distances = space.distance(Y, np.broadcast_to(mean, Y.shape))
        if self.squared:
            # The published Fréchet variance of distributions is a sum over the grid while the loss is a mean
            # over it; the penalty on the bandwidth is stated on that scale.
            levels = Y.shape[1] if isinstance(space, Wasserstein1D) else 1
            self.unit = float((distances**2).mean()) * levels or 1.0
        else:
            self.unit = float(distances.mean()) or 1.0

    def loss(self, z_in: Tensor, Y: Tensor, z_out: Tensor, targets: Tensor, h: Tensor) -> Tensor:
        squared = self.space.loss(Y, local_linear_weights(z_in, z_out, h).weights, targets)
        if self.squared:
            return squared.mean() / self.unit
        # The root has no derivative at zero.
        return (squared + 1e-12).sqrt().mean() / self.unit

    def validate(self, model: PerSampleDirection, h: Tensor, validation: Rows) -> Tensor:
        z = model(validation.X)
        if self.by_self_fit:
            return self.loss(z, validation.Y, z, validation.Y, h)
        return self.loss(model(self.rows.X), self.rows.Y, z, validation.Y, h)


def _epoch(
    fitting: _Fit,
    model: PerSampleDirection,
    bandwidth: ClampedBandwidth,
    optimizer: torch.optim.Optimizer,
    shuffler: np.random.Generator,
) -> float:
    """One pass over the shuffled training rows; the mean of the batches' objectives."""
    rows, objectives = fitting.rows, []
    for batch in np.array_split(order := shuffler.permutation(len(rows.X)), range(BATCH, len(order), BATCH)):
        index = torch.from_numpy(batch).to(rows.X.device)
        z, Y, h = model(rows.X[index]), rows.Y[index], bandwidth()
        objective = fitting.loss(z, Y, z, Y, h) + fitting.lam / h
        optimizer.zero_grad()
        objective.backward()
        if fitting.gradient_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), fitting.gradient_norm)
        optimizer.step()
        objectives.append(objective.item())
    return float(np.mean(objectives))
