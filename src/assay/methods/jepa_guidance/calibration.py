"""Does JEPA-SCORE rank density for this encoder on these images, and in which direction?

By the paper, images with a low score are rare. That follows from a change of variables for encoders whose
embedding is exactly Gaussian or uniform; small encoders of one's own can rank the other way round. So the
sign is measured: the rank correlation of the negative score with the distance to the nearest neighbours in
another space, with a bootstrap interval over the images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.errors import InputError
from assay.files import write_json

FILE_NAME = "jepa_calibration.json"
Space = Literal["pca"] | Callable[[Float[Tensor, "images channels height width"]], Tensor]

# Fewer images give no interval worth reading.
LEAST_IMAGES = 30
_COMPONENTS = 20
_RESAMPLES, _RESAMPLES_AT_ONCE = 2000, 200
_LEVEL = 0.95
# Two kNN distances of duplicates are 0: their ranks say nothing.
_LEAST_DISTINCT = 0.5


@dataclass(frozen=True)
class Calibration:
    """What a score is worth on a set of reference images.

    Attributes:
        sign: +1: low scores are rare (the paper's direction); -1: high scores are; 0: the interval contains
            0, so that the score ranks nothing.
        rho: Spearman's correlation of the negative score with the distance to the k nearest neighbours.
        rho_low: lower end of its 95% bootstrap interval.
        rho_high: upper end.
        auroc: of the negative score for the images labelled rare, if labels were given.
        auroc_low: lower end of its 95% bootstrap interval.
        auroc_high: upper end.
        images: number of reference images.
        neighbours: k.
        space: name of the space of the distances.
        include_prior: whether the log density of the embedding under a standard normal was added.
        image_size: side at which the images were scored.
    """

    sign: int
    rho: float
    rho_low: float
    rho_high: float
    auroc: float | None
    auroc_low: float | None
    auroc_high: float | None
    images: int
    neighbours: int
    space: str
    include_prior: bool
    image_size: int

    def usable_sign(self) -> int:
        """+1 or -1.

        Raises:
            InputError: the score does not rank density on the reference images, or the calibration is of
                another quantity than guidance uses.
        """
        if self.include_prior:
            raise InputError(
                "this calibration includes the prior of the embedding, and guidance follows the score alone: "
                "calibrate without include_prior"
            )
        if self.sign == 0:
            raise InputError(
                f"the score does not rank density on your data (rho = {self.rho:.2f}, 95% interval "
                f"{self.rho_low:.2f} to {self.rho_high:.2f}): use another encoder or more reference images, "
                "or force a direction with assume_sign"
            )
        return self.sign

    def save(self, folder: Path | str) -> Path:
        """Write `jepa_calibration.json` into the encoder's folder."""
        path = Path(folder) / FILE_NAME
        write_json(path, asdict(self))
        return path

    @classmethod
    def load(cls, folder: Path | str) -> Calibration:
        """Read what `save` wrote.

        Raises:
            InputError: the file is missing or is not a calibration.
        """
        path = Path(folder) / FILE_NAME
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"{folder} holds no {FILE_NAME}: calibrate the encoder first") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not a calibration: {error}; calibrate again") from error
        try:
            calibration = cls(**values)
            numbers = (calibration.rho, calibration.rho_low, calibration.rho_high)
            valid = calibration.sign in (-1, 0, 1) and all(math.isfinite(float(n)) for n in numbers)
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise InputError(f"{path} is not a calibration; delete it and calibrate again")
        return calibration


def calibrate_scores(
    scores: Float[Tensor, " images"],
    reference: Float[Tensor, "images channels height width"],
    labels_rare: Bool[Tensor, " images"] | None,
    *,
    k: int,
    space: Space,
    seed: int,
    include_prior: bool,
    image_size: int,
) -> Calibration:
    """Compare scores with distances to neighbours among the same images.

    Args:
        scores: the score of each image.
        reference: the images.
        labels_rare: which images are known to be rare.
        k: neighbours.
        space: where distances are taken: `"pca"`, the leading principal components of the pixels, or a
            function from images to vectors, best one that has nothing to do with the encoder.
        seed: of the bootstrap.
        include_prior: recorded in the result.
        image_size: recorded in the result.

    Raises:
        InputError: too few images, or images or labels from which nothing can be learnt.
    """
    values = scores.detach().cpu().double().numpy()
    _check_images(values, k)
    distances = _neighbour_distances(_in_space(reference, space), k)
    if len(np.unique(distances)) < _LEAST_DISTINCT * len(distances) or np.ptp(values) == 0:
        raise InputError(
            f"the {len(values)} reference images are mostly duplicates or have equal scores: nothing can be "
            "ranked"
        )
    generator = np.random.default_rng(seed)
    rho, rho_low, rho_high = _with_interval(_spearman, -values, distances, generator)
    sign = 0 if rho_low <= 0 <= rho_high else int(math.copysign(1, rho))
    auroc: tuple[float | None, float | None, float | None] = (None, None, None)
    if labels_rare is not None:
        rare = np.asarray(torch.as_tensor(labels_rare).cpu(), dtype=bool)
        if rare.shape != values.shape or rare.all() or not rare.any():
            raise InputError(
                f"labels_rare marks {int(rare.sum())} of {rare.size} labels for {len(values)} images; pass "
                "one label for each image, with some rare and some not"
            )
        auroc = _with_interval(_auroc, -values, rare, generator)
    return Calibration(
        sign=sign,
        rho=rho,
        rho_low=rho_low,
        rho_high=rho_high,
        auroc=auroc[0],
        auroc_low=auroc[1],
        auroc_high=auroc[2],
        images=len(values),
        neighbours=k,
        space=space if isinstance(space, str) else getattr(space, "__name__", type(space).__name__),
        include_prior=include_prior,
        image_size=image_size,
    )


def _check_images(values: np.ndarray, k: int) -> None:
    if k < 1:
        raise InputError(f"k is {k}; at least 1 neighbour is needed")
    least = max(LEAST_IMAGES, 2 * k + 1)
    if len(values) < least:
        raise InputError(f"{len(values)} reference images are too few to calibrate; pass at least {least}")
    if not np.isfinite(values).all():
        raise InputError(
            f"{int((~np.isfinite(values)).sum())} of {len(values)} scores are not finite: the encoder "
            "overflows or is broken"
        )


def _in_space(images: Tensor, space: Space) -> np.ndarray:
    flat = images.detach().cpu().double().flatten(1)
    if space == "pca":
        centred = flat - flat.mean(dim=0)
        components = min(_COMPONENTS, *centred.shape)
        left, singular, _ = torch.linalg.svd(centred, full_matrices=False)
        return (left[:, :components] * singular[:components]).numpy()
    if not callable(space):
        raise InputError(f"space is {space!r}; use 'pca' or a function from images to vectors")
    points = torch.as_tensor(space(images)).detach().cpu().double().flatten(1)
    if len(points) != len(images) or not torch.isfinite(points).all():
        raise InputError(f"space gives {tuple(points.shape)}: one finite vector for each image is needed")
    return points.numpy()


def _neighbour_distances(points: np.ndarray, k: int) -> np.ndarray:
    """Mean distance of each point to its k nearest neighbours among the others."""
    from sklearn.neighbors import NearestNeighbors

    found, _ = NearestNeighbors(n_neighbors=k).fit(points).kneighbors()
    return found.mean(axis=1)


def _spearman(scores: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row of pairs."""
    from scipy.stats import rankdata

    left, right = (
        ranks - ranks.mean(axis=1, keepdims=True)
        for ranks in (rankdata(scores, axis=1), rankdata(distances, axis=1))
    )
    return (left * right).sum(axis=1) / np.sqrt((left**2).sum(axis=1) * (right**2).sum(axis=1))


def _auroc(scores: np.ndarray, rare: np.ndarray) -> np.ndarray:
    """The area under the ROC curve of each row, from the ranks of the rare ones (Mann and Whitney)."""
    from scipy.stats import rankdata

    positive = rare.sum(axis=1)
    wins = (rankdata(scores, axis=1) * rare).sum(axis=1) - positive * (positive + 1) / 2
    return wins / (positive * (rare.shape[1] - positive))


def _with_interval(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    scores: np.ndarray,
    other: np.ndarray,
    generator: np.random.Generator,
) -> tuple[float, float, float]:
    """A statistic of pairs and its percentile bootstrap interval; draws without variation are left out."""
    drawn = []
    for size in [_RESAMPLES_AT_ONCE] * (_RESAMPLES // _RESAMPLES_AT_ONCE):
        rows = generator.integers(len(scores), size=(size, len(scores)))
        left, right = scores[rows], other[rows]
        varied = (left != left[:, :1]).any(axis=1) & (right != right[:, :1]).any(axis=1)
        drawn.append(statistic(left[varied], right[varied]))
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(statistic(scores[None], other[None])[0]), float(low), float(high)
