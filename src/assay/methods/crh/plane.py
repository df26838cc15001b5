"""Does a plane hold the directions that prompts are sensitive to? Against chance and against other planes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from assay.errors import InputError


@dataclass(frozen=True)
class PlaneTest:
    """The share of unit vectors' energy in a k-plane, against a random direction.

    Attributes:
        k: the rank of the plane.
        captured: the share for every sample.
        mean: its mean.
        chance: the mean for a random direction, k / (d - 1).
        p_value: of the mean, one-sided, for independent random directions.
        p_values: of every sample, exact: the share is Beta(k / 2, (d - 1 - k) / 2).
        others: mean shares in the planes of other concepts, by name.
        specificity_p: that the own plane captures no more than the others do on average, one-sided t over
            samples; NaN without others.
    """

    k: int
    captured: tuple[float, ...]
    mean: float
    chance: float
    p_value: float
    p_values: tuple[float, ...]
    others: Mapping[str, float]
    specificity_p: float

    @property
    def ratio(self) -> float:
        """The mean over chance."""
        return self.mean / self.chance


def captured_energy(
    normals: Float[Tensor, "n width"], basis: Float[Tensor, "k width"]
) -> Float[np.ndarray, " n"]:
    """The share of each unit vector's squared length inside a plane with an orthonormal basis."""
    return (normals.double() @ basis.double().T).square().sum(dim=1).numpy()


def plane_test(
    normals: Float[Tensor, "n width"],
    basis: Float[Tensor, "components width"],
    k: int,
    others: Mapping[str, Float[Tensor, "components width"]] | None = None,
    *,
    draws: int = 20_000,
    seed: int = 0,
) -> PlaneTest:
    """Test whether directions orthogonal to the axis lie in a plane more than random ones do.

    Args:
        normals: unit vectors orthogonal to the axis.
        basis: orthonormal, orthogonal to the axis; its first `k` rows are the plane.
        others: bases of other concepts.
        draws: of the law of the mean, which has no closed form; `p_value` is at least 1 / (draws + 1).
        seed: of those draws.

    Raises:
        InputError: the basis has fewer than `k` rows.
    """
    if not 1 <= k <= len(basis):
        raise InputError(f"a plane of rank {k} needs as many directions; there are {len(basis)}")
    freedom = normals.shape[1] - 1
    captured = captured_energy(normals, basis[:k])
    law = stats.beta(k / 2, (freedom - k) / 2)
    generator = np.random.default_rng(seed)
    means = np.zeros(draws)
    for _ in range(len(captured)):
        means += law.rvs(draws, random_state=generator)
    mean = float(captured.mean())
    p_value = float((1 + (means / len(captured) >= mean).sum()) / (draws + 1))
    elsewhere = {
        name: captured_energy(normals, other[:k]) for name, other in (others or {}).items() if len(other) >= k
    }
    specificity = math.nan
    if elsewhere and len(captured) > 1:
        difference = captured - np.mean(list(elsewhere.values()), axis=0)
        specificity = _one_sided(difference)
    return PlaneTest(
        k,
        tuple(map(float, captured)),
        mean,
        k / freedom,
        p_value,
        tuple(map(float, law.sf(captured))),
        {name: float(values.mean()) for name, values in elsewhere.items()},
        specificity,
    )


def _one_sided(difference: Float[np.ndarray, " n"]) -> float:
    error = difference.std(ddof=1) / math.sqrt(len(difference))
    if error == 0:
        return 0.0 if difference.mean() > 0 else 1.0
    return float(stats.t.sf(difference.mean() / error, len(difference) - 1))
