"""What happens to panoramas: turning, re-encoding, resizing, noise, tone changes and covered patches."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Shaped, UInt8

from assay.errors import InputError
from assay.methods.panorama_watermark.rotations import as_dtype, rotate_panorama

Pixels = Shaped[np.ndarray, "rows columns *channels"]


def _codec(image: UInt8[np.ndarray, "rows columns *channels"], kind: str, **options: object) -> np.ndarray:
    from PIL import Image

    if image.dtype != np.uint8:
        raise InputError(f"{kind} holds 8 bits a channel, the image is {image.dtype}")
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return np.array(Image.open(buffer))


def jpeg(
    image: UInt8[np.ndarray, "rows columns *channels"], quality: int, *, subsampling: int = 2
) -> np.ndarray:
    """Through JPEG and back; subsampling 2 (4:2:0) is what most programs write.

    Raises:
        InputError: the quality isn't from 1 to 100, the image has an alpha channel or isn't 8-bit.
    """
    if not 1 <= quality <= 100:
        raise InputError(f"the JPEG quality must be from 1 to 100, got {quality}")
    if image.ndim == 3 and image.shape[2] in (2, 4):
        raise InputError("JPEG has no alpha channel: drop it first")
    return _codec(image, "JPEG", quality=quality, subsampling=subsampling)


def webp(image: UInt8[np.ndarray, "rows columns *channels"], quality: int) -> np.ndarray:
    """Through lossy WebP and back."""
    return _codec(image, "WEBP", quality=quality)


def resize(image: Pixels, factor: float) -> Pixels:
    """Resize by a factor (area-weighted Lanczos for 8 bits, area means or linear else); stays 2:1.

    Raises:
        InputError: the factor leaves under 8 rows, or is over 8.
    """
    rows = round(len(image) * factor)
    if rows < 8 or factor > 8:
        raise InputError(
            f"resizing {len(image)} rows by {factor} is out of range (8 rows at least, factor 8 at most)"
        )
    if image.dtype == np.uint8:
        from PIL import Image

        size = (2 * rows, rows)
        return np.array(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
    from scipy.ndimage import gaussian_filter, zoom

    values = image.astype(np.float32)
    flat = values.reshape(*image.shape[:2], -1)
    if factor < 1:
        blur = 0.5 / factor - 0.4
        options: dict[str, Any] = {"mode": ("nearest", "wrap", "nearest")}
        flat = gaussian_filter(flat, (blur, blur, 0), **options)
    scaled = zoom(
        flat, (rows / len(image), 2 * rows / image.shape[1], 1), order=1, grid_mode=True, mode="nearest"
    )
    return as_dtype(np.asarray(scaled), image.dtype).reshape(rows, 2 * rows, *image.shape[2:])


def _colours(image: np.ndarray) -> np.ndarray:
    """A view of the channels that aren't alpha."""
    return image if image.ndim == 2 or image.shape[2] in (1, 3) else image[..., :-1]


def _peak(image: np.ndarray) -> float:
    return float(np.iinfo(image.dtype).max) if np.issubdtype(image.dtype, np.integer) else 1.0


def noise(image: Pixels, deviation: float, seed: int | np.random.Generator) -> Pixels:
    """White Gaussian noise; its deviation is in grey levels of 0..255."""
    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    out = image.copy()
    colours = _colours(out)
    step = deviation * _peak(image) / 255
    colours[...] = as_dtype(colours + step * rng.normal(size=colours.shape), image.dtype)
    return out


def gamma(image: Pixels, exponent: float) -> Pixels:
    """Raise display values (0..1) to a power: below 1 brightens.

    Raises:
        InputError: the exponent isn't positive.
    """
    if exponent <= 0:
        raise InputError(f"the gamma must be positive, got {exponent}")
    out = image.copy()
    colours, peak = _colours(out), _peak(image)
    colours[...] = as_dtype(peak * (colours / peak) ** exponent, image.dtype)
    return out


def flip(image: Pixels) -> Pixels:
    """The mirror image (left and right exchanged)."""
    return np.ascontiguousarray(image[:, ::-1])


def cover_pole(image: Pixels, degrees: float, *, pole: Literal["nadir", "zenith"] = "nadir") -> Pixels:
    """A black cap around a pole, of this angular radius."""
    rows = round(len(image) * degrees / 180)
    out = image.copy()
    if rows:
        _colours(out)[slice(-rows, None) if pole == "nadir" else slice(0, rows)] = 0
    return out


def cover_strip(image: Pixels, degrees: float, *, start: float = 0.0) -> Pixels:
    """A black strip of longitudes, from `start`, so many degrees wide."""
    width = image.shape[1]
    columns = (round(width * start / 360) + np.arange(round(width * degrees / 360))) % width
    out = image.copy()
    _colours(out)[:, columns] = 0
    return out


def attack(
    image: Pixels,
    *,
    rotation: Float[np.ndarray, "3 3"] | None = None,
    order: int = 1,
    scale: float | None = None,
    deviation: float | None = None,
    exponent: float | None = None,
    mirrored: bool = False,
    quality: int | None = None,
    seed: int = 0,
) -> Pixels:
    """A chain: rotation, resizing, gamma, noise, mirror image, JPEG, in this order; each only where it is
    given.

    Args:
        image: the panorama.
        rotation: R; see `rotate_panorama`.
        order: of the rotation's interpolation: 1 or 3.
        scale: resize by this factor.
        deviation: of noise, in grey levels.
        exponent: of gamma.
        mirrored: mirror the image.
        quality: of JPEG (4:2:0).
        seed: of the noise.

    Raises:
        InputError: a parameter is out of range.
    """
    if rotation is not None:
        image = rotate_panorama(image, rotation, order=order)
    if scale is not None:
        image = resize(image, scale)
    if exponent is not None:
        image = gamma(image, exponent)
    if deviation is not None:
        image = noise(image, deviation, seed)
    if mirrored:
        image = flip(image)
    return jpeg(image, quality) if quality is not None else image
