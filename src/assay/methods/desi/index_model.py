"""How predictors become one number: the models of the index.

`SharedDirection` and `SharedNetworkDirection` are single-index models, z = theta' x with one unit vector
theta. `PerSampleDirection` gives every row a direction of its own, z = theta(x)' x, which can represent any
scalar function of x; it is kept for comparison.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

Mode = Literal["shared", "deep_shared", "per_sample"]


class SharedDirection(nn.Module):
    """One direction, a free vector normalised to length one."""

    def __init__(self, start: Float[np.ndarray, " p"]) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def direction(self) -> Float[Tensor, " p"]:
        return self.raw / self.raw.norm()

    def forward(self, X: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        return X @ self.direction()


class SharedNetworkDirection(nn.Module):
    """One direction, the normalised mean of a network's outputs over the training predictors."""

    def __init__(self, network: nn.Sequential, X: Float[Tensor, "n p"]) -> None:
        super().__init__()
        self.network = network
        self.X = X

    def direction(self) -> Float[Tensor, " p"]:
        mean = self.network(self.X).mean(0)
        return mean / mean.norm()

    def forward(self, X: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        return X @ self.direction()


class PerSampleDirection(nn.Module):
    """A direction for every row: the normalised output of a network, its first coordinate not negative."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network

    def directions(self, X: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
        out = nn.functional.normalize(self.network(X), dim=1)
        return torch.where(out[:, :1] < 0, -out, out)

    def forward(self, X: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        return (X * self.directions(X)).sum(1)


SharedModel = SharedDirection | SharedNetworkDirection


def direction_network(
    n_predictors: int, hidden: int, dropout: float, generator: torch.Generator
) -> nn.Sequential:
    """The network that proposes directions: two blocks Linear-LayerNorm-LeakyReLU-Dropout, then Linear.

    Kaiming-normal weights and zero biases, as in the authors' implementation; `generator` draws the weights.
    """
    layers: list[nn.Module] = []
    width = n_predictors
    for _ in range(2):
        layers += [
            seeded_linear(width, hidden, generator),
            nn.LayerNorm(hidden),
            nn.LeakyReLU(),
            SeededDropout(dropout, generator),
        ]
        width = hidden
    layers.append(seeded_linear(width, n_predictors, generator))
    return nn.Sequential(*layers).double()


def seeded_linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with Kaiming-normal weights from `generator` and zero biases."""
    # Made on the meta device, the layer does not initialise itself from the global random state.
    layer = nn.Linear(n_in, n_out, dtype=torch.float64, device="meta").to_empty(device=generator.device)
    nn.init.kaiming_normal_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class SeededDropout(nn.Module):
    """Dropout that draws from a generator of its own: no fit depends on the global random state."""

    def __init__(self, rate: float, generator: torch.Generator | None) -> None:
        super().__init__()
        self.rate = rate
        self.generator = generator

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        if not self.training or self.rate == 0 or self.generator is None:
            return x
        draws = torch.rand(x.shape, dtype=x.dtype, generator=self.generator, device=x.device)
        return x * (draws >= self.rate) / (1 - self.rate)


class Bandwidth(nn.Module):
    """A positive bandwidth: learnt as the softplus of a free number, or held fixed."""

    def __init__(self, start: float, *, learnt: bool) -> None:
        super().__init__()
        # The inverse of softplus, written so that it does not overflow.
        raw = torch.tensor(start + float(np.log(-np.expm1(-start))), dtype=torch.float64)
        self.raw = nn.Parameter(raw, requires_grad=learnt)

    def forward(self) -> Float[Tensor, ""]:
        return nn.functional.softplus(self.raw)


def starting_directions(
    X: Float[np.ndarray, "n p"],
    coordinates: Float[np.ndarray, "n dim"],
    n_random: int,
    generator: np.random.Generator,
) -> list[Float[np.ndarray, " p"]]:
    """Unit vectors to start from: from the first moments of the responses, from the second, and random ones.

    The first is the direction of global Fréchet regression: the leading left singular vector of the
    least-squares coefficients of the responses' coordinates. Under a single-index model with elliptical
    predictors every column of the coefficients is a multiple of theta. It says nothing when the link is
    symmetric; the second start, the leading principal Hessian direction, then does.

    Args:
        X: standardised predictors.
        coordinates: of the responses (`base.coordinates`).
        n_random: number of random directions, uniform on the sphere.
    """
    coefficients, *_ = np.linalg.lstsq(X - X.mean(0), coordinates - coordinates.mean(0), rcond=None)
    left, _, _ = np.linalg.svd(coefficients, full_matrices=False)
    random = generator.standard_normal((n_random, X.shape[1]))
    moments = [left[:, 0], principal_hessian_direction(X, coordinates)]
    return [*moments, *(random / np.linalg.norm(random, axis=1, keepdims=True))]


def principal_hessian_direction(
    X: Float[np.ndarray, "n p"], coordinates: Float[np.ndarray, "n dim"], n_components: int = 3
) -> Float[np.ndarray, " p"]:
    """The leading principal Hessian direction of the responses' coordinates, of length one.

    With whitened predictors x and residuals r of the linear regression, E[r x x'] has theta as its only
    eigenvector with a non-zero eigenvalue under a single-index model with normal predictors. The squares of
    these matrices are added over the leading principal components of r.

    Source: Li (1992), principal Hessian directions, residual-based.
    """
    X = X - X.mean(0)
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    usable = values > 1e-10 * values[-1]
    whitening = vectors[:, usable] / np.sqrt(values[usable])
    Z = X @ whitening
    centred = coordinates - coordinates.mean(0)
    residuals = centred - Z @ (Z.T @ centred) / len(Z)
    left, singular, _ = np.linalg.svd(residuals, full_matrices=False)
    squares = np.zeros((Z.shape[1], Z.shape[1]))
    for component in (left * singular)[:, :n_components].T:
        hessian = (Z * component[:, None]).T @ Z / len(Z)
        squares += hessian @ hessian
    direction = whitening @ np.linalg.eigh(squares)[1][:, -1]
    return direction / np.linalg.norm(direction)


def oriented(direction: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """The direction or its opposite: the one whose first coordinate that is not zero is positive."""
    first = direction[np.flatnonzero(np.abs(direction) > 1e-12)[0]]
    return direction if first > 0 else -direction
