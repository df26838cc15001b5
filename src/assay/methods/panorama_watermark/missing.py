"""Pixels that show nothing: tripod patches, logos, the rest of the sphere around a partial panorama.

Both marking and detecting fill them in smoothly before looking, so that their edge doesn't ring through the
spectrum. The fill uses the shown pixels only, so both sides do the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from assay.errors import InputError

MOST_MISSING = 0.25
_SCALES = (4.0, 16.0, 64.0)
# A patch at a pole counts from this share of the sphere.
_SMALLEST_PATCH = 0.002


def covered_sphere(valid: Bool[np.ndarray, "rows columns"]) -> float:
    """The share of the sphere that is shown."""
    weights = np.sin((np.arange(len(valid)) + 0.5) * np.pi / len(valid))
    return float(valid.mean(axis=1) @ weights / weights.sum())


def same_mask(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Do two masks of valid pixels say the same? None means that all are."""
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def check_coverage(valid: Bool[np.ndarray, "rows columns"]) -> None:
    """Refuse to mark where more than a quarter of the sphere is missing.

    Raises:
        InputError: that is so.
    """
    missing = 1 - covered_sphere(valid)
    if missing > MOST_MISSING:
        raise InputError(
            f"{missing:.0%} of the sphere is missing; marking needs at least {1 - MOST_MISSING:.0%} "
            "of it shown"
        )


def _coarse(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Sums over the cells that start at given rows and columns."""
    return np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1)


def fill_missing(
    luma: Float[np.ndarray, "rows columns"], valid: Bool[np.ndarray, "rows columns"] | None
) -> Float[np.ndarray, "rows columns"]:
    """Fill pixels that aren't valid by normalised Gaussian diffusion of the others.

    It is done at 512 columns at most, with scales of 4, 16 and 64 of them, the finest that reaches a place
    first; what none reaches gets the mean. Longitude wraps.
    """
    if valid is None or valid.all():
        return luma
    from scipy.ndimage import gaussian_filter, map_coordinates

    height, width = luma.shape
    size = min(512, width)
    rows = np.arange(size // 2) * height // (size // 2)
    columns = np.arange(size) * width // size
    weight = _coarse(valid.astype(float), rows, columns)
    shown = _coarse(np.where(valid, luma, 0).astype(float), rows, columns)
    filled = np.full(weight.shape, shown.sum() / max(weight.sum(), 1.0))
    todo = np.ones(weight.shape, bool)
    cell = weight.max()
    for sigma in (0.0, *_SCALES):
        options: dict[str, Any] = {"mode": ("nearest", "wrap")}
        reach = gaussian_filter(weight, sigma, **options) if sigma else weight
        near = todo & (reach > 0.02 * cell)
        values = gaussian_filter(shown, sigma, **options) if sigma else shown
        filled[near] = values[near] / reach[near]
        todo &= ~near
    holes = np.nonzero(~valid)
    wrapped = np.concatenate([filled[:, -1:], filled, filled[:, :1]], axis=1)
    places = [
        (holes[0] + 0.5) * (size // 2) / height - 0.5,
        (holes[1] + 0.5) * size / width + 0.5,
    ]
    out = luma.copy()
    out[holes] = map_coordinates(wrapped, places, order=1, mode="nearest")
    return out


def constant_pole_patches(image: Shaped[np.ndarray, "rows columns *channels"]) -> np.ndarray | None:
    """Valid pixels of an image whose nadir or zenith is covered by a patch of one colour; None without one.

    A patch is a connected region of exactly one colour that touches the top or the bottom row in half of its
    pixels, and covers at least 0.2% of the sphere. What covers more than a quarter is the picture itself (a
    clipped sky, say), no patch.
    """
    from scipy.ndimage import label

    planes = image[..., None] if image.ndim == 2 else image[..., :3]
    valid = np.ones(planes.shape[:2], bool)
    for row in (0, -1):
        colours, counts = np.unique(planes[row], axis=0, return_counts=True)
        colour = colours[counts.argmax()]
        if counts.max() * 2 < planes.shape[1]:
            continue
        regions = np.empty(planes.shape[:2], np.int32)
        label((planes == colour).all(axis=2), output=regions)
        touching = np.unique(regions[row])
        patch = np.isin(regions, touching[touching > 0])
        if 1 - covered_sphere(~patch) >= _SMALLEST_PATCH:
            valid &= ~patch
    if valid.all() or 1 - covered_sphere(valid) > MOST_MISSING:
        return None
    return valid
