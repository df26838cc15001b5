"""Learning a shared direction and its bandwidth by the leave-one-out error of local Fréchet regression."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.methods.desi.index_model import (
    Bandwidth,
    SharedDirection,
    SharedModel,
    SharedNetworkDirection,
    direction_network,
)
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.weights import local_linear_weights

# Steps in a row that may be skipped because the loss or its gradient is not finite.
SKIPPED_STEPS = 5
# Adam's learning rate from a direction that is nearly right.
REFINING_LR = 0.02
# Rows whose error the loss averages: with more rows the cost would grow with their square. All rows remain
# neighbours.
LOSS_ROWS = 1024


class Rows(NamedTuple):
    """Rows that a direction is learnt from.

    Attributes:
        X: standardised predictors.
        Y: responses.
        variance: the responses' Fréchet variance, the unit of the loss.
        counts: how often every row counts (bootstrap); None for once each.
    """

    X: Float[Tensor, "n p"]
    Y: Float[Tensor, "n ..."]
    variance: float
    counts: Float[Tensor, " n"] | None = None

    def take(self, rows: Int[Tensor, " k"]) -> Rows:
        return Rows(self.X[rows], self.Y[rows], self.variance, None)


@dataclass(frozen=True)
class Schedule:
    """How long and how fast one start is trained.

    Args:
        lam: the weight of 1/bandwidth in the objective.
        max_epochs: gradient steps at most.
        patience: steps without improvement of the monitored loss after which training stops.
        lr: Adam's learning rate.
    """

    lam: float
    max_epochs: int
    patience: int
    lr: float = 0.05


Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Training(Generic[Model]):
    """What training one start came to: the model and bandwidth at the best step, and how it went there.

    Attributes:
        best: the smallest monitored loss: on the validation rows, or the objective itself where there are
            none.
        losses: the objective before every step.
        validation_losses: the loss on the validation rows before every step; empty without such rows.
    """

    model: Model
    bandwidth: nn.Module
    best: float = math.inf
    losses: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)


def leave_one_out_loss(
    space: MetricSpace, z: Float[Tensor, " n"], rows: Rows, bandwidth: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """The mean of d^2(Y_i, m_-i(z_i)), m_-i fitted without row i, in units of the Fréchet variance.

    Beyond `LOSS_ROWS` rows the mean is over so many, always the same ones.
    """
    n = len(z)
    own = torch.arange(n) if n <= LOSS_ROWS else torch.randperm(n, generator=torch.Generator().manual_seed(0))
    own = own[:LOSS_ROWS].to(z.device)
    weights = local_linear_weights(z, z[own], bandwidth, excluded=own, counts=rows.counts).weights
    losses = space.loss(rows.Y, weights, rows.Y[own])
    if rows.counts is None:
        return losses.mean() / rows.variance
    counts = rows.counts[own]
    return (losses * counts).sum() / counts.sum() / rows.variance


def held_out_loss(
    space: MetricSpace, model: nn.Module, bandwidth: Float[Tensor, ""], train: Rows, validation: Rows
) -> Float[Tensor, ""]:
    """The mean of d^2(Y_i, m(z_i)) over the validation rows, m fitted to the training rows."""
    weights = local_linear_weights(model(train.X), model(validation.X), bandwidth).weights
    return space.loss(train.Y, weights, validation.Y).mean() / train.variance


def train(
    space: MetricSpace,
    model: Model,
    bandwidth: Bandwidth,
    rows: Rows,
    validation: Rows | None,
    schedule: Schedule,
) -> Training[Model]:
    """Minimise the leave-one-out loss + lam / bandwidth with Adam; the state of the best step.

    Raises:
        FloatingPointError: the loss was not finite for several steps in a row.
    """
    parameters = [p for p in (*model.parameters(), *bandwidth.parameters()) if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=schedule.lr)
    result = Training(model, bandwidth)
    best_state = None
    best_step = skipped = 0
    for step in range(schedule.max_epochs):
        model.train()
        optimizer.zero_grad()
        h = bandwidth()
        loss = leave_one_out_loss(space, model(rows.X), rows, h)
        if bandwidth.raw.requires_grad:
            loss = loss + schedule.lam / h
        if validation is None:
            monitored = loss.item()
        else:
            model.eval()
            with torch.no_grad():
                monitored = held_out_loss(space, model, h, rows, validation).item()
            result.validation_losses.append(monitored)
        result.losses.append(loss.item())
        if monitored < result.best - 1e-6:
            # Copied, not referenced: the optimizer writes into the parameters in place.
            best_state = copy.deepcopy((model.state_dict(), bandwidth.state_dict()))
            result.best, best_step = monitored, step
        elif step - best_step >= schedule.patience:
            break
        loss.backward()
        if math.isfinite(loss.item()) and all(_finite(p) for p in parameters):
            optimizer.step()
            skipped = 0
        elif (skipped := skipped + 1) >= SKIPPED_STEPS:
            raise FloatingPointError(
                f"the loss was not finite for {SKIPPED_STEPS} steps in a row, the last at step {step} with "
                f"bandwidth {h.item():.3g}"
            )
    if best_state is not None:
        model.load_state_dict(best_state[0])
        bandwidth.load_state_dict(best_state[1])
    model.eval()
    return result


def shared_models(
    starts: list[Float[np.ndarray, " p"]],
) -> list[Callable[[], SharedModel]]:
    """One free direction for every start."""
    return [lambda start=start: SharedDirection(start) for start in starts]


def network_models(
    X: Float[Tensor, "n p"], hidden: int, dropout: float, seeds: list[int]
) -> list[Callable[[], SharedModel]]:
    """One freshly drawn network for every seed."""

    def build(seed: int) -> SharedModel:
        generator = torch.Generator(device=X.device).manual_seed(seed)
        network = direction_network(X.shape[1], hidden, dropout, generator).to(X.device)
        return SharedNetworkDirection(network, X)

    return [lambda seed=seed: build(seed) for seed in seeds]


def train_from_starts(
    space: MetricSpace,
    models: list[Callable[[], SharedModel]],
    bandwidth: float | None,
    rows: Rows,
    validation: Rows | None,
    schedule: Schedule,
) -> list[Training[SharedModel]]:
    """Train every start.

    Args:
        bandwidth: a fixed bandwidth; None to learn it from a rule of thumb's start.
    """
    n = len(rows.X)
    start = 1.06 * n**-0.2 if bandwidth is None else bandwidth
    results = []
    for build in models:
        h = Bandwidth(start, learnt=bandwidth is None).to(rows.X.device)
        results.append(train(space, build().to(rows.X.device), h, rows, validation, schedule))
    return results


def compare_starts(
    space: MetricSpace, results: list[Training[SharedModel]], rows: Rows
) -> Float[np.ndarray, " starts"]:
    """The leave-one-out error of every start's direction on all rows, at the starts' median bandwidth.

    A few validation rows are a good brake but a poor judge: with heavy-tailed responses they often prefer a
    start that has missed the direction. A common bandwidth keeps a start from winning by a small bandwidth.
    """
    with torch.no_grad():
        bandwidth = torch.stack([result.bandwidth() for result in results]).median()
        errors = [
            leave_one_out_loss(space, result.model(rows.X), rows, bandwidth).item() for result in results
        ]
    return np.array(errors)


def _finite(parameter: nn.Parameter) -> bool:
    return parameter.grad is None or bool(torch.isfinite(parameter.grad).all())
