"""Exhaustive search for a rotation: what reading a mark takes that is no invariant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.methods.panorama_watermark.baselines import Mark, Pixels, Word
from assay.methods.panorama_watermark.frames import match_p_value
from assay.methods.panorama_watermark.luma import pixel_scale
from assay.methods.panorama_watermark.rotations import as_dtype, rotate_panorama


@dataclass(frozen=True)
class Found:
    """What a search over rotations found.

    Args:
        p_value: of the best rotation for a known word, times the number that was tried.
        matches: bits that were right there.
        rotation: which of the rotations it was.
    """

    p_value: float
    matches: int
    rotation: int


def rotation_candidates(count: int, headings: int = 64) -> Float[np.ndarray, "count 3 3"]:
    """Rotations to try: evenly spaced turns about the vertical first, then an even cover of all of SO(3).

    The cover is an additive recurrence in the cube (with the powers of the root of x^4 = x + 1), mapped to
    unit quaternions by Shoemake's area-preserving map ("Uniform random rotations", 1992).
    """
    from scipy.spatial.transform import Rotation

    headings = min(count, headings)
    angles = np.arange(headings)[:, None] * (360 / headings)
    turns = Rotation.from_euler("z", angles, degrees=True).as_matrix()
    if headings == count:
        return turns
    steps = 1.2207440846057596 ** -np.arange(1.0, 4.0)
    u, v, w = (0.5 + np.outer(np.arange(count - headings), steps)).T % 1.0
    a, b = np.sqrt(1 - u), np.sqrt(u)
    two_pi = 2 * np.pi
    quaternions = [
        a * np.sin(two_pi * v),
        a * np.cos(two_pi * v),
        b * np.sin(two_pi * w),
        b * np.cos(two_pi * w),
    ]
    return np.concatenate([turns, Rotation.from_quat(np.stack(quaternions, axis=1)).as_matrix()])


def search_rotation(
    mark: Mark, image: Pixels, word: Word, rotations: Float[np.ndarray, "count 3 3"] | Sequence[np.ndarray]
) -> Found:
    """Turn an image by every candidate and test for a known word: what a mark that is no invariant needs.

    Args:
        mark: it must read grey images.
        image: the image that may have been turned.
        word: the channel bits to look for.
        rotations: the candidates.
    """
    luma = as_dtype(pixel_scale(image).luma(image), np.uint8)
    matches = [
        int(np.count_nonzero((mark.soft_values(rotate_panorama(luma, rotation)) < 0) == word))
        for rotation in rotations
    ]
    best = int(np.argmax(matches))
    return Found(match_p_value(matches[best], mark.bits, len(matches)), matches[best], best)


def rotations_within(degrees: float) -> float:
    """At least so many rotations are needed to be within an angle of every other one.

    The volume of SO(3) over a ball's: the share of rotations by at most the angle a is (a - sin a) / pi.
    """
    angle = math.radians(degrees)
    return math.pi / (angle - math.sin(angle))
