"""How rare, how valid and how diverse samples are, in a feature space that no encoder of the method has made.

All functions take rows of features (`ImageJudge.features`, or yours). None of these numbers says enough by
itself: samples of a single mode can have excellent rarity and precision, with a recall of zero.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from assay.errors import InputError, require

Rows = Float[np.ndarray, "n d"]


@dataclass(frozen=True)
class ManifoldMetrics:
    """Precision and recall (Kynkaanniemi et al., 2019), density and coverage (Naeem et al., 2020)."""

    precision: float
    recall: float
    density: float
    coverage: float


def average_knn_distance(samples: Rows, reference: Rows, k: int = 5) -> Float[np.ndarray, " n"]:
    """The mean distance of every sample to its k nearest reference rows (AvgkNN); large is rare.

    Raises:
        InputError: fewer than k reference rows, or other widths.
    """
    _check(samples, reference, k)
    neighbours = _sklearn("neighbors").NearestNeighbors(n_neighbors=k).fit(reference)
    return neighbours.kneighbors(samples)[0].mean(axis=1)


def local_outlier_factor(samples: Rows, reference: Rows, k: int = 20) -> Float[np.ndarray, " n"]:
    """The local outlier factor among the reference rows (Breunig et al., 2000); about 1 is an inlier."""
    _check(samples, reference, k + 1)
    fitted = _sklearn("neighbors").LocalOutlierFactor(n_neighbors=k, novelty=True).fit(reference)
    return -fitted.score_samples(samples)


def rarity_score(samples: Rows, reference: Rows, k: int = 3) -> Float[np.ndarray, " n"]:
    """The radius of the smallest k-NN ball of a reference row that contains the sample.

    NaN for samples outside of all balls: they are off the manifold and have no rarity (Han et al., "Rarity
    Score: A New Metric to Evaluate the Uncommonness of Synthesized Images", ICLR 2023, equation 1).
    """
    _check(samples, reference, k + 1)
    neighbours = _sklearn("neighbors").NearestNeighbors(n_neighbors=k + 1).fit(reference)
    radii = neighbours.kneighbors(reference)[0][:, -1]
    distances = _sklearn("metrics").pairwise_distances(samples, reference)
    inside = np.where(distances <= radii, radii, np.inf).min(axis=1)
    return np.where(np.isfinite(inside), inside, np.nan)


def manifold_metrics(samples: Rows, reference: Rows, k: int = 3) -> ManifoldMetrics:
    """Precision, recall, density and coverage by the package `prdc`.

    Recall and coverage depend on the number of samples: compare sets of equal size only.
    """
    _check(samples, reference, k + 1)
    _check(reference, samples, k + 1)
    prdc: Any = require("prdc", extra="diffusion")
    with contextlib.redirect_stdout(io.StringIO()):
        found = prdc.compute_prdc(reference, samples, k)
    return ManifoldMetrics(**{name: float(value) for name, value in found.items()})


def frechet_distance(samples: Rows, reference: Rows) -> float:
    """The squared Frechet distance between two normal laws with the moments of the rows.

    With the reference rows of a minority this is what the paper calls cFID, in the feature space at hand.
    """
    _check(samples, reference, 2)
    _check(reference, samples, 2)
    first, second = np.cov(samples, rowvar=False), np.cov(reference, rowvar=False)
    values, vectors = np.linalg.eigh(np.atleast_2d(second))
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    cross = np.linalg.eigvalsh(root @ np.atleast_2d(first) @ root)
    shift = samples.mean(axis=0) - reference.mean(axis=0)
    trace = np.trace(np.atleast_2d(first)) + np.trace(np.atleast_2d(second))
    return float(shift @ shift + trace - 2 * np.sqrt(np.clip(cross, 0, None)).sum())


def class_shares(labels: Int[np.ndarray, " n"], classes: int) -> Float[np.ndarray, " c"]:
    """The share of every class 0 .. classes - 1."""
    if len(labels) == 0:
        raise InputError("there are no labels to count")
    return np.bincount(labels, minlength=classes) / len(labels)


def class_entropy(shares: Float[np.ndarray, " c"]) -> float:
    """The entropy of class shares over its largest value: 1 for equal shares, 0 for a single class."""
    present = shares[shares > 0]
    return float(-(present * np.log(present)).sum() / np.log(len(shares))) + 0.0


def jensen_shannon(first: Float[np.ndarray, " c"], second: Float[np.ndarray, " c"]) -> float:
    """The Jensen-Shannon divergence of two distributions in bits: 0 for equal ones, 1 for disjoint ones."""
    from scipy.spatial.distance import jensenshannon

    return float(jensenshannon(first, second, base=2) ** 2)


class ImageJudge:
    """Principal components and a classifier of real images: the judge that owes nothing to the encoders.

    Args:
        components: principal components that make the features.
        regularisation, gamma: C and gamma of the support-vector machine, as in scikit-learn.
    """

    def __init__(
        self, components: int = 20, regularisation: float = 10.0, gamma: float | str = "scale"
    ) -> None:
        self.components = components
        self.regularisation = regularisation
        self.gamma = gamma

    def fit(self, images: Float[np.ndarray, "n c h w"], labels: Int[np.ndarray, " n"]) -> ImageJudge:
        """Fit to real images in [0, 1] and their classes."""
        pixels = _pixels(images)
        self._projection: Any = _sklearn("decomposition").PCA(self.components, random_state=0).fit(pixels)
        machine = _sklearn("svm").SVC(C=self.regularisation, gamma=self.gamma)
        self._classifier: Any = machine.fit(pixels, labels)
        return self

    def features(self, images: Float[np.ndarray, "n c h w"]) -> Float[np.ndarray, "n d"]:
        """The leading principal components of images in [0, 1]."""
        return self._projection.transform(_pixels(images))

    def classes(self, images: Float[np.ndarray, "n c h w"]) -> Int[np.ndarray, " n"]:
        """The class of every image."""
        return self._classifier.predict(_pixels(images))


def _pixels(images: Float[np.ndarray, "n c h w"]) -> Float[np.ndarray, "n p"]:
    return np.asarray(images, dtype=np.float64).reshape(len(images), -1)


def _check(samples: Rows, reference: Rows, least: int) -> None:
    if samples.ndim != 2 or reference.ndim != 2 or samples.shape[1] != reference.shape[1]:
        raise InputError(
            f"features have shapes {samples.shape} and {reference.shape}: pass rows of equal width"
        )
    if len(samples) == 0 or len(reference) < least:
        raise InputError(
            f"{len(samples)} samples and {len(reference)} reference rows: at least 1 and {least}"
        )


def _sklearn(module: str) -> Any:
    return require(f"sklearn.{module}", extra="diffusion")
