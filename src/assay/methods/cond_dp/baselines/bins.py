"""Randomised response on bins: which values to release, with what probabilities, given a prior on labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.errors import InputError


def randomised_response(epsilon: float, outcomes: int) -> Float[np.ndarray, "k k"]:
    """The probabilities of releasing outcome j (columns) when the truth is outcome i (rows).

    The truth is released with probability e^epsilon / (e^epsilon + k - 1), every other outcome with a
    probability smaller by the factor e^epsilon exactly.

    Raises:
        InputError: epsilon is not above 0, or there are fewer than two outcomes.

    Source: Warner (1965); Kairouz, Oh and Viswanath (2014) for k outcomes.
    """
    if not epsilon > 0:
        raise InputError(f"epsilon is {epsilon!r}: pass a number above 0")
    if outcomes < 2:
        raise InputError(f"randomised response between {outcomes} outcomes reveals nothing: pass 2 or more")
    # e^-epsilon and not e^epsilon, which overflows where almost no privacy is asked for.
    ratio = math.exp(-epsilon)
    other = ratio / (1 + (outcomes - 1) * ratio)
    matrix = np.full((outcomes, outcomes), other)
    np.fill_diagonal(matrix, 1 / (1 + (outcomes - 1) * ratio))
    return matrix


@dataclass(frozen=True)
class Bins:
    """A partition of the label range into intervals with a value to release for each.

    Args:
        edges: the inner boundaries, increasing; a label equal to one belongs to the bin on its right.
        outputs: the value released for each bin.
        centres: the mean of the prior in each bin (its midpoint where the prior has no mass).
        expected_loss: E (y - released)^2 under the prior and randomised response.
    """

    edges: Float[np.ndarray, " k_minus_1"]
    outputs: Float[np.ndarray, " k"]
    centres: Float[np.ndarray, " k"]
    expected_loss: float

    def index(self, y: Float[np.ndarray, " n"]) -> np.ndarray:
        """The bin of every label."""
        return np.searchsorted(self.edges, y, side="right")


def optimal_bins(
    values: Float[np.ndarray, " g"], prior: Float[np.ndarray, " g"], epsilon: float, outcomes: int
) -> Bins:
    """The partition into at most `outcomes` intervals that loses least to randomised response.

    With p the probability of the truth and q that of every other bin, the loss of a bin B that releases o is
    (p - q) sum_B P(y) (y - o)^2 + q sum P(y) (y - o)^2, so the best o is the mean of the bin and of the whole
    prior with weights (p - q) P(B) and q, and the best partition is a shortest path over the grid (O(g^2 k)).

    Args:
        values: the grid, increasing.
        prior: the probability of each grid value.
        epsilon: of the randomised response.
        outcomes: k, from 2 to the number of grid values.

    Raises:
        InputError: the sizes do not fit, or epsilon is not above 0.

    Source: Ghazi et al. (2023), Regression with Label Differential Privacy, Algorithm 2.
    """
    values, prior = np.asarray(values, dtype=float), np.asarray(prior, dtype=float)
    size = len(values)
    if not 2 <= outcomes <= size:
        raise InputError(f"{outcomes} bins of {size} grid values: pass from 2 to {size}")
    probabilities = randomised_response(epsilon, outcomes)
    q = probabilities[0, 1]
    stay = probabilities[0, 0] - q
    loss, output = _interval_losses(values, prior, stay, q)
    best, choices = loss[0].copy(), []
    for _ in range(outcomes - 1):
        # best[j]: the least loss of the grid up to j; the last bin starts behind i.
        candidates = best[:-1, None] + loss[1:, :]
        choices.append(np.argmin(candidates, axis=0))
        best = candidates.min(axis=0)
    starts, end = [], size - 1
    for choice in reversed(choices):
        starts.append(int(choice[end]) + 1)
        end = int(choice[end])
    firsts = np.array([0, *reversed(starts)])
    lasts = np.array([*(firsts[1:] - 1), size - 1])
    mass = np.array([prior[i : j + 1].sum() for i, j in zip(firsts, lasts, strict=True)])
    sums = np.array([(prior * values)[i : j + 1].sum() for i, j in zip(firsts, lasts, strict=True)])
    midpoints = (values[firsts] + values[lasts]) / 2
    return Bins(
        edges=(values[lasts[:-1]] + values[firsts[1:]]) / 2,
        outputs=output[firsts, lasts],
        centres=np.where(mass > 0, sums / np.where(mass > 0, mass, 1.0), midpoints),
        expected_loss=float(best[-1]),
    )


def _interval_losses(
    values: Float[np.ndarray, " g"], prior: Float[np.ndarray, " g"], stay: float, q: float
) -> tuple[Float[np.ndarray, "g g"], Float[np.ndarray, "g g"]]:
    """The loss of every interval [i, j] with its best output, and that output; infinite where j < i."""
    moments = [np.concatenate([[0.0], np.cumsum(prior * values**power)]) for power in (0, 1, 2)]
    mass, first, second = (total[None, 1:] - total[:-1, None] for total in moments)
    whole = [total[-1] for total in moments]
    weight = stay * mass + q * whole[0]
    output = (stay * first + q * whole[1]) / np.where(weight > 0, weight, 1.0)
    loss = stay * second + q * whole[2] - output**2 * weight
    inside = np.tri(len(values), dtype=bool).T
    return np.where(inside, loss, np.inf), output
