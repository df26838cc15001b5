"""The trigonometric law of steerability, searched as the paper's code does, with a null that searches too.

The law says that steerability grows like `norm^a sin^m(theta) cos^n(theta)`. Its exponents are the best of
hundreds, and all questions of a concept share one steerability; the p-value of the best correlation knows of
neither. The permutation test here repeats the whole search with steerabilities exchanged between concepts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from assay.errors import InputError


@dataclass(frozen=True)
class SearchGrid:
    """The exponents that are tried: `norm^a`, `sin^a` and `cos^(2p - a)`, p between `edge` and `a - edge`.

    Args:
        largest: the highest a.
        step_a, step_p: the steps of a and p.
        edge: how far p stays from 0 and from a.
    """

    largest: float = 8.0
    step_a: float = 0.05
    step_p: float = 0.025
    edge: float = 0.1

    def exponents(self) -> list[tuple[float, Float[np.ndarray, " p"]]]:
        """Every a with its values of p.

        Raises:
            InputError: the grid is empty.
        """
        found = []
        for a in np.arange(self.step_a, self.largest + 1e-9, self.step_a):
            p = np.arange(self.edge + self.step_p, a - self.edge - 1e-9, self.step_p)
            if len(p):
                found.append((float(a), p))
        if not found:
            raise InputError(f"the grid up to {self.largest} in steps of {self.step_a} is empty")
        return found


@dataclass(frozen=True)
class TrigonometricLaw:
    """The best law and how much it means.

    Attributes:
        norm_exponent, sine_exponent, cosine_exponent: of the best law.
        correlation: its Pearson correlation over rows.
        naive_p: the p-value that this correlation would have without a search and with independent rows.
        p_value: of the whole search, steerabilities exchanged between concepts.
        held_out_r2: of predictions for concepts that search and fit did not see; below zero is worse than the
            mean.
        looks: laws that were tried.
        n, concepts: rows and concepts that were used.
        dropped: rows whose angle has no positive sine and cosine; powers of them are not defined.
    """

    norm_exponent: float
    sine_exponent: float
    cosine_exponent: float
    correlation: float
    naive_p: float
    p_value: float
    held_out_r2: float
    looks: int
    n: int
    concepts: int
    dropped: int


def fit_trigonometric_law(
    theta: Float[np.ndarray, " rows"],
    concept: Int[np.ndarray, " rows"] | Sequence[int],
    norms: Float[np.ndarray, " concepts"],
    steerability: Float[np.ndarray, " concepts"],
    *,
    grid: SearchGrid | None = None,
    n_perm: int = 999,
    folds: int = 5,
    seed: int = 0,
) -> TrigonometricLaw:
    """Search the exponents of the law and test the search.

    Args:
        theta: the angle of every sample to its concept's axis, in radians.
        concept: the index of every sample's concept.
        norms: the length of each concept's mean difference.
        steerability: of each concept.
        grid: the exponents.
        n_perm: permutations; 0 leaves the p-value undefined.
        folds: of the cross-validation over concepts.
        seed: of permutations and folds.

    Raises:
        InputError: fewer than 4 concepts, or numbers that are not finite or lengths that do not fit.
    """
    theta, index = np.asarray(theta, dtype=float), np.asarray(concept, dtype=int)
    norms, y = np.asarray(norms, dtype=float), np.asarray(steerability, dtype=float)
    if theta.shape != index.shape or norms.shape != y.shape:
        raise InputError("theta and concept, and norms and steerability, must have equal lengths")
    if not all(np.isfinite(values).all() for values in (theta, norms, y)) or (norms <= 0).any():
        raise InputError("angles and steerabilities must be finite and norms positive")
    defined = (np.sin(theta) > 1e-9) & (np.cos(theta) > 1e-9)
    kept, index = theta[defined], index[defined]
    present = np.unique(index)
    if len(present) < 4:
        raise InputError(f"{len(present)} concepts are too few for a law; at least 4 are needed")
    exponents = (grid or SearchGrid()).exponents()
    search = _Search(kept, index, norms, exponents)
    best, a, p = search.best(y[None])
    generator = np.random.default_rng(seed)
    null = np.empty(n_perm)
    for start in range(0, n_perm, 64):
        count = min(64, n_perm - start)
        shuffled = np.stack([_exchanged(y, present, generator) for _ in range(count)])
        null[start : start + count] = search.best(shuffled)[0]
    p_value = (1 + int((null >= best[0] - 1e-12).sum())) / (n_perm + 1) if n_perm else math.nan
    return TrigonometricLaw(
        float(a[0]),
        float(a[0]),
        float(2 * p[0] - a[0]),
        float(best[0]),
        _naive_p(float(best[0]), len(kept)),
        p_value,
        _held_out_r2(kept, index, norms, y, exponents, folds, generator),
        sum(len(values) for _, values in exponents),
        len(kept),
        len(present),
        int((~defined).sum()),
    )


def _exchanged(y: np.ndarray, present: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    shuffled = y.copy()
    shuffled[present] = y[generator.permutation(present)]
    return shuffled


def _naive_p(correlation: float, n: int) -> float:
    if n < 3 or abs(correlation) >= 1:
        return 0.0
    t = correlation * math.sqrt((n - 2) / (1 - correlation**2))
    return float(2 * stats.t.sf(abs(t), n - 2))


class _Search:
    """Correlations of every law with many vectors of steerabilities at once."""

    def __init__(
        self, theta: np.ndarray, index: np.ndarray, norms: np.ndarray,
        exponents: list[tuple[float, np.ndarray]],
    ) -> None:  # fmt: skip
        self._index, self._norms, self._exponents = index, norms, exponents
        self._log_sine, self._log_cosine = np.log(np.sin(theta)), np.log(np.cos(theta))

    def feature(self, a: float, p: float) -> np.ndarray:
        return np.exp(a * self._log_sine + (2 * p - a) * self._log_cosine)

    def best(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The highest correlation of each row of `y` [vectors, concepts], with its a and p."""
        rows = len(y)
        best, best_a, best_p = np.full(rows, -np.inf), np.zeros(rows), np.zeros(rows)
        for a, ps in self._exponents:
            # Powers are taken as exponentials of logarithms, scaled so that the largest is one.
            logs = a * self._log_sine + (2 * ps[:, None] - a) * self._log_cosine
            features = _standardised(np.exp(logs - logs.max(axis=1, keepdims=True)))
            scaled = _standardised((y / self._norms**a)[:, self._index])
            correlations = scaled @ features.T
            column = correlations.argmax(axis=1)
            value = correlations[np.arange(rows), column]
            better = value > best
            best = np.where(better, value, best)
            best_a = np.where(better, a, best_a)
            best_p = np.where(better, ps[column], best_p)
        return best, best_a, best_p


def _standardised(values: np.ndarray) -> np.ndarray:
    """Rows with mean zero and length one; constant rows become zero."""
    centred = values - values.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    constant = length <= 1e-12 * np.linalg.norm(values, axis=1, keepdims=True)
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, length))


def _held_out_r2(
    theta: np.ndarray, index: np.ndarray, norms: np.ndarray, y: np.ndarray,
    exponents: list[tuple[float, np.ndarray]], folds: int, generator: np.random.Generator,
) -> float:  # fmt: skip
    """R-squared of predicted steerabilities of concepts that neither search nor fit has seen."""
    order = generator.permutation(np.unique(index))
    squared = total = 0.0
    for fold in range(min(folds, len(order))):
        held_out = order[fold :: min(folds, len(order))]
        training = np.setdiff1d(order, held_out)
        if len(training) < 3:
            return math.nan
        inside = np.isin(index, training)
        search = _Search(theta[inside], index[inside], norms, exponents)
        _, a, p = search.best(y[None])
        feature = search.feature(float(a[0]), float(p[0]))
        scaled = (y / norms ** float(a[0]))[index[inside]]
        design = np.column_stack([np.ones(len(feature)), feature])
        coefficients = np.linalg.lstsq(design, scaled, rcond=None)[0]
        mean = y[training].mean()
        for concept in held_out:
            rows = index == concept
            new = _Search(theta[rows], index[rows], norms, exponents).feature(float(a[0]), float(p[0]))
            predicted = float((coefficients[0] + coefficients[1] * new).mean()) * norms[concept] ** float(
                a[0]
            )
            squared += (y[concept] - predicted) ** 2
            total += (y[concept] - mean) ** 2
    return float(1 - squared / total) if total > 0 else math.nan
