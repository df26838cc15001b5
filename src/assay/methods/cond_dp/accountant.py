"""An accountant for Opacus that knows what changes between neighbours."""

from __future__ import annotations

from typing import Any

from opacus.accountants.accountant import IAccountant

from assay.methods.cond_dp.accounting import Adjacency, NoisySteps, check_adjacency, epsilon_spent


class AdjacencyAccountant(IAccountant):
    """An Opacus accountant that knows what changes between neighbours.

    Args:
        adjacency: the neighbour relation.

    Attributes:
        history: (noise multiplier, sample rate, number of steps), as in Opacus.
    """

    def __init__(self, adjacency: Adjacency = "replace_label") -> None:
        super().__init__()
        check_adjacency(adjacency)
        self.adjacency: Adjacency = adjacency
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one step."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """What the history has cost at this delta."""
        return epsilon_spent(self.steps(), delta, self.adjacency)

    def steps(self) -> list[NoisySteps]:
        """The history for `accounting.epsilon_spent`."""
        return [NoisySteps(*entry) for entry in self.history]

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        return "adjacency"
