"""Small exact examples: two printed theorems that fail, and a learner that only an L_p theory covers.

Everything random takes finitely many values, so that probabilities are sums of fractions; the Gaussian mean
is the exception, with closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np


@dataclass(frozen=True)
class Witness:
    """What a printed theorem says of an example, what is true, and what the corrected form says.

    Attributes:
        claim: the printed statement.
        exceedance: P(|gap - mean gap| > threshold), or P(gap > bias + threshold) where the mean is bounded.
        threshold: the distance.
        printed_envelope: the swap envelope as printed.
        true_swap: the largest change that a swap makes.
        corrected_envelope: the swap envelope of the corrected statement.
    """

    claim: str
    exceedance: Fraction
    threshold: Fraction
    printed_envelope: Fraction
    true_swap: Fraction
    corrected_envelope: Fraction

    @property
    def refutes(self) -> bool:
        """Whether the printed statement fails: a zero envelope bounds every exceedance by zero."""
        return self.printed_envelope == 0 and self.exceedance > 0


def transductive_witness() -> Witness:
    """Theorem 3.10: N = 2, m = u = 1, labels 0 and 1, the constant predictor 0 and the squared loss.

    The predictor does not depend on the sample, so beta H = 0, and G = |l - l'| = 1. The printed swap
    envelope 2 beta H + |1/u - 1/m| beta' G is 0, but test minus training risk is +1 or -1.
    """
    labels = (Fraction(0), Fraction(1))
    m = u = 1
    losses = [label**2 for label in labels]
    gaps = []
    for training in combinations(range(m + u), m):
        test = [i for i in range(m + u) if i not in training]
        gaps.append(sum(losses[i] for i in test) / u - sum(losses[i] for i in training) / m)
    mean = sum(gaps, Fraction(0)) / len(gaps)
    threshold = Fraction(1, 2)
    sensitivity = abs(losses[0] - losses[1])
    return Witness(
        "Theorem 3.10 with the swap envelope 2 beta H + |1/u - 1/m| beta' G",
        Fraction(sum(abs(gap - mean) > threshold for gap in gaps), len(gaps)),
        threshold,
        abs(Fraction(1, u) - Fraction(1, m)) * sensitivity,
        max(gaps) - min(gaps),
        (Fraction(1, u) + Fraction(1, m)) * sensitivity,
    )


def meta_witness() -> Witness:
    """Theorem 3.14: one training task out of two equally likely point masses, at 0 and at 1.

    A task's sample is its point theta, repeated, and the learner predicts 1 - theta for every task, with the
    loss |prediction - observation|: within a task every observation is the same, so that changing one for
    another draw of the task changes nothing and all printed coefficients are 0. The training risk is |1 - 2
    theta| = 1, the risk on a fresh task 1/2: the gap is -1/2 always. The printed theorem bounds |gap| by its
    bias term, 0.
    """
    tasks = (Fraction(0), Fraction(1))

    def loss(theta: Fraction, observation: Fraction) -> Fraction:
        return abs((1 - theta) - observation)

    def transfer_risk(theta: Fraction) -> Fraction:
        return sum((loss(theta, task) for task in tasks), Fraction(0)) / len(tasks)

    gaps = [transfer_risk(theta) - loss(theta, theta) for theta in tasks]
    within = max(
        abs(loss(theta, z) - loss(theta, swapped)) for theta in tasks for z, swapped in [(theta, theta)]
    )
    # Replacing a task moves the loss on every task sample by at most beta H, and the loss of one model
    # between the samples of two tasks by beta' G; both are 1, the envelope is 2 beta H + beta' G / m with one
    # task.
    stability = max(abs(loss(a, z) - loss(b, z)) for a, b, z in product(tasks, repeat=3))
    sensitivity = max(abs(loss(theta, a) - loss(theta, b)) for theta, a, b in product(tasks, repeat=3))
    threshold = Fraction(1, 4)
    return Witness(
        "Theorem 3.14 with stability under the change of one observation within a task",
        Fraction(sum(abs(gap) > within + threshold for gap in gaps), len(gaps)),
        threshold,
        within,
        max(abs(a - b) for a in gaps for b in gaps),
        2 * stability + sensitivity,
    )


@dataclass(frozen=True)
class GaussianMean:
    """The mean of m standard normal numbers with the loss |A_S|: H = |z - z'| / m, unbounded.

    Uniform stability is infinite, and with it the bounds of McDiarmid and of Bousquet and Elisseeff; all
    moments of H are finite.

    Attributes:
        m: number of training values.
    """

    m: int

    def envelope_norm(self) -> float:
        """The L_2 norm of H: sqrt(E (z - z')^2) / m = sqrt(2) / m."""
        return math.sqrt(2) / self.m

    def change_norm(self) -> float:
        """The L_2 norm of |A_S| - |A_(S^i)|, a little less than that of H because signs can differ.

        The two means are jointly normal with variance 1/m and correlation r = 1 - 1/m, and E|ab| of such a
        pair is (2 / pi)(sqrt(1 - r^2) + r arcsin r) / m.
        """
        correlation = 1 - 1 / self.m
        product_mean = 2 / math.pi * (math.sqrt(1 - correlation**2) + correlation * math.asin(correlation))
        return math.sqrt(2 * (1 - product_mean) / self.m)

    def sample_changes(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` draws of |A_S| - |A_(S^i)|, each from a fresh sample."""
        others = rng.normal(scale=math.sqrt(self.m - 1), size=n)
        before, after = rng.normal(size=(2, n))
        return np.abs(others + before) / self.m - np.abs(others + after) / self.m
