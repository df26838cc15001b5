"""Can the sector of a prompt be predicted from its difference vector? Held-out scores, intervals, power."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from assay.errors import InputError
from assay.methods.crh.circular import mean_angle, rayleigh_p, resultant_length
from assay.study.statistics import MeanEstimate, cluster_means

PREDICTORS = ("constant", "nearest", "ridge")


@dataclass(frozen=True)
class SectorScore:
    """How well a predictor finds held-out sectors.

    Attributes:
        score: the mean of cos(predicted - true): 1 is perfect, 0 is chance.
        interval: of the score, over clusters, corrected for the number of predictors.
        p_value: by permutation or rotation of the held-out phases, one-sided.
    """

    score: float
    interval: tuple[float, float]
    p_value: float


@dataclass(frozen=True)
class SectorTest:
    """Predictors of the sector on held-out samples.

    Attributes:
        scores: by predictor: `constant` (the mean phase of the training samples), `nearest` (that of the most
            similar difference), `ridge` (regression on coordinates, length and angle).
        resultant: the mean resultant length of the held-out phases.
        resultant_chance: what uniform phases give on average.
        rayleigh_p: Rayleigh's test of the held-out phases.
        detectable: the smallest score that would have been found with 80% power.
        n: held-out samples.
        clusters: independent units among them.
        predictable: whether the interval of a predictor lies above zero.
    """

    scores: Mapping[str, SectorScore]
    resultant: float
    resultant_chance: float
    rayleigh_p: float
    detectable: float
    n: int
    clusters: int

    @property
    def predictable(self) -> bool:
        return any(score.interval[0] > 0 for score in self.scores.values())


@dataclass(frozen=True)
class SectorData:
    """Phases of samples and what may predict them.

    Attributes:
        phases: phi* in radians.
        differences: unit difference vectors, for the nearest neighbour.
        features: for the ridge regression.
        groups: the concept of each sample; predictors are fitted within one, intervals are over them.
    """

    phases: Float[np.ndarray, " n"]
    differences: Float[np.ndarray, "n width"]
    features: Float[np.ndarray, "n features"]
    groups: tuple[Hashable, ...]

    def __len__(self) -> int:
        return len(self.phases)

    def subset(self, indices: Sequence[int]) -> SectorData:
        """The samples at `indices`, in that order."""
        chosen = list(indices)
        return SectorData(
            self.phases[chosen],
            self.differences[chosen],
            self.features[chosen],
            tuple(self.groups[i] for i in chosen),
        )


def sector_test(
    train: SectorData, test: SectorData, *, n_perm: int = 999, alpha: float = 0.05, seed: int = 0
) -> SectorTest:
    """Predict the sectors of held-out samples from their difference vectors.

    The null of `constant` turns every held-out phase by a random angle; that of the other two exchanges
    held-out phases within a concept, so that they must know more than the concept's mean phase. With samples
    of one concept every sample is a unit; with several, a concept is (Student's t over their means).

    Raises:
        InputError: a concept of the held-out samples has no training samples, or there are fewer than two.
    """
    if len(test) < 2:
        raise InputError(f"{len(test)} held-out samples are too few to judge sectors; at least 2 are needed")
    predicted = predict_sectors(train, test)
    members = _members(test.groups)
    generator = np.random.default_rng(seed)
    several = len(members) > 1
    units = test.groups if several else tuple(range(len(test)))
    scores = {}
    for name, angles in predicted.items():
        cosines = np.cos(angles - test.phases)
        estimate = MeanEstimate(cluster_means(cosines.tolist(), units))
        null = _null_scores(name, angles, test.phases, list(members.values()), n_perm, generator)
        p_value = float((1 + (null >= cosines.mean() - 1e-12).sum()) / (n_perm + 1))
        low, high = estimate.interval(alpha / len(PREDICTORS))
        scores[name] = SectorScore(float(cosines.mean()), (max(low, -1.0), min(high, 1.0)), p_value)
    # The cosine of uniform angles has variance 1/2.
    detectable = float(stats.norm.isf(alpha / 2) + stats.norm.isf(0.2)) * math.sqrt(0.5 / len(test))
    return SectorTest(
        scores,
        resultant_length(test.phases),
        math.sqrt(math.pi / (4 * len(test))),
        rayleigh_p(test.phases),
        detectable,
        len(test),
        len(set(units)),
    )


def predict_sectors(train: SectorData, test: SectorData) -> dict[str, Float[np.ndarray, " n"]]:
    """The sectors that each of `PREDICTORS` expects for held-out samples, in radians.

    `constant` is the mean phase of the training samples, `nearest` the phase of the one whose difference has
    the largest cosine, `ridge` a ridge regression of cosine and sine of the phase on the features. Each is
    fitted within a group.

    Raises:
        InputError: a group of the held-out samples has no training samples, or the two sets have features or
            differences of other widths.
    """
    for name in ("differences", "features"):
        known, new = getattr(train, name).shape[1], getattr(test, name).shape[1]
        if known != new:
            raise InputError(f"training {name} have {known} columns, held-out ones {new}")
    if missing := [group for group in dict.fromkeys(test.groups) if group not in set(train.groups)]:
        raise InputError(f"no training phases for {', '.join(map(str, missing))}")
    predicted = {name: np.zeros(len(test)) for name in PREDICTORS}
    fitted = _members(train.groups)
    for group, held_out in _members(test.groups).items():
        for name, values in _predictions(train, fitted[group], test, held_out).items():
            predicted[name][held_out] = values
    return predicted


def _members(groups: Sequence[Hashable]) -> dict[Hashable, np.ndarray]:
    """The samples of every group."""
    return {group: np.flatnonzero([member == group for member in groups]) for group in dict.fromkeys(groups)}


def _predictions(
    train: SectorData, fitted: np.ndarray, test: SectorData, held_out: np.ndarray
) -> dict[str, Float[np.ndarray, " m"]]:
    phases = train.phases[fitted]
    similarity = test.differences[held_out] @ train.differences[fitted].T
    targets = np.column_stack([np.cos(phases), np.sin(phases)])
    fit = _ridge(train.features[fitted], targets, test.features[held_out])
    return {
        "constant": np.full(len(held_out), mean_angle(phases)),
        "nearest": phases[similarity.argmax(axis=1)],
        "ridge": np.arctan2(fit[:, 1], fit[:, 0]),
    }


def _ridge(X: np.ndarray, Y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Ridge regression with an intercept; the penalty has the least leave-one-out error, in closed form."""
    centre, spread = X.mean(axis=0), X.std(axis=0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    standard, offset = (X - centre) / spread, Y.mean(axis=0)
    U, values, Vt = np.linalg.svd(standard, full_matrices=False)
    rotated = U.T @ (Y - offset)
    best, chosen = math.inf, np.zeros((standard.shape[1], Y.shape[1]))
    for penalty in len(X) * np.logspace(-3, 3, 13):
        shrink = values**2 / (values**2 + penalty)
        residual = (Y - offset) - U @ (shrink[:, None] * rotated)
        leverage = 1 - (U**2 @ shrink) - 1 / len(X)
        error = float(((residual / np.maximum(leverage, 1e-6)[:, None]) ** 2).sum())
        if error < best:
            best, chosen = error, Vt.T @ ((values / (values**2 + penalty))[:, None] * rotated)
    return offset + ((new - centre) / spread) @ chosen


def _null_scores(
    name: str, predicted: np.ndarray, phases: np.ndarray, members: list[np.ndarray], n_perm: int,
    generator: np.random.Generator,
) -> Float[np.ndarray, " n_perm"]:  # fmt: skip
    if name == "constant":
        turned = generator.uniform(-np.pi, np.pi, size=(n_perm, len(phases)))
        return np.cos(predicted - turned).mean(axis=1)
    scores = np.empty(n_perm)
    for k in range(n_perm):
        shuffled = phases.copy()
        for held_out in members:
            shuffled[held_out] = phases[generator.permutation(held_out)]
        scores[k] = np.cos(predicted - shuffled).mean()
    return scores


def merge(parts: Sequence[SectorData]) -> SectorData:
    """The samples of several concepts together. Features are padded with zeros to one width.

    Predictors are fitted within a concept, so columns need not mean the same in two concepts.
    """
    widest = max(part.features.shape[1] for part in parts)
    features = [np.pad(part.features, ((0, 0), (0, widest - part.features.shape[1]))) for part in parts]
    return SectorData(
        np.concatenate([part.phases for part in parts]),
        np.concatenate([part.differences for part in parts]),
        np.concatenate(features),
        tuple(group for part in parts for group in part.groups),
    )
