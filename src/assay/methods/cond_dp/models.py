"""Networks whose first layer is linear in the features: what a conditioner can stand in front of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class FirstLinear(nn.Module):
    """v = W_public x_public + W_private x_private + b for inputs (batch, d) that have the public columns
    first."""

    def __init__(self, n_public: int, n_private: int, n_outputs: int) -> None:
        super().__init__()
        self.n_public = n_public
        self.public = nn.Linear(n_public, n_outputs)
        self.private = nn.Linear(n_private, n_outputs, bias=False) if n_private else None

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        if self.private is None:
            return self.public(x)
        return self.public(x[:, : self.n_public]) + self.private(x[:, self.n_public :])


class MultilayerPerceptron(nn.Module):
    """Rectified layers, then one number.

    Args:
        n_public, n_private: columns of the input, public ones first.
        hidden: widths of the hidden layers, at least one.
    """

    def __init__(self, n_public: int, n_private: int = 0, hidden: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        self.first = FirstLinear(n_public, n_private, hidden[0])
        layers: list[nn.Module] = []
        for width, following in itertools.pairwise([*hidden, 1]):
            layers += [nn.ReLU(), nn.Linear(width, following)]
        self.rest = nn.Sequential(*layers)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.rest(self.first(x)).squeeze(-1)


class FactorizationMachine(nn.Module):
    """v_0 + (v_1^2 - v_2^2 + v_3^2 - ...) / 2 for v linear in the features: all pairwise interactions, of low
    rank.

    Products of a feature with itself are kept, so that the prediction is a function of v alone, and signs
    alternate, so that interactions may have either.

    Args:
        n_public, n_private: columns of the input, public ones first.
        factors: how many squares.

    Source: Rendle (2010), with the diagonal and signs as said.
    """

    def __init__(self, n_public: int, n_private: int = 0, factors: int = 8) -> None:
        super().__init__()
        self.first = FirstLinear(n_public, n_private, 1 + factors)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        v = self.first(x)
        squares = v[:, 1:] ** 2
        return v[:, 0] + (squares[:, ::2].sum(dim=1) - squares[:, 1::2].sum(dim=1)) / 2


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Normal weights of standard deviation 1 / sqrt(inputs), zero biases; for a factorisation machine a
    tenth."""
    share = 0.1 if isinstance(module, FactorizationMachine) else 1.0
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, share / layer.in_features**0.5, generator=generator)
            if layer.bias is not None:
                layer.bias.zero_()
