"""An image file's content: pixels, metadata, and how it was encoded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from assay.errors import InputError
from assay.methods.panorama_watermark.gpano import Placement


@dataclass(frozen=True)
class Picture:
    """An image file's content.

    Args:
        pixels: the full panorama, (H, 2H) or (H, 2H, channels).
        format: "JPEG", "PNG", "WEBP", "TIFF", "EXR" or "HDR".
        hdr: linear light.
        shown: pixels that a partial panorama shows; None for a full one.
        place: where a partial panorama lies, and its width and height.
        exif: the EXIF block.
        xmp: the XMP packet.
        icc: the colour profile.
        settings: how the file was encoded (quality, subsampling, lossless, tags, header), for writing it
            alike.
    """

    pixels: Shaped[np.ndarray, "rows columns *channels"]
    format: str
    hdr: bool = False
    shown: Bool[np.ndarray, "rows columns"] | None = None
    place: tuple[Placement, int, int] | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    icc: bytes | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def check_single(pictures: int) -> None:
    """Refuse files of several pictures.

    Raises:
        InputError: there are more than one.
    """
    if pictures > 1:
        raise InputError(f"the file holds {pictures} pictures, of which one can be marked: split it first")


def undecodable(error: Exception) -> InputError:
    """What a library complains about when it cannot decode a file, in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return InputError(f"the image cannot be decoded: {lines[0]}")


def xmp_of(info: dict[Any, Any]) -> bytes | None:
    """The XMP packet among what Pillow says about a file."""
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp")
    return xmp.encode() if isinstance(xmp, str) else xmp


def linear_light(pixels: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Linear light, checked: negative values are set to 0, with a warning.

    Raises:
        InputError: values aren't finite.
    """
    bad = int(np.count_nonzero(~np.isfinite(pixels)))
    if bad:
        raise InputError(f"{bad} values of the image are not finite: repair them first")
    below = int(np.count_nonzero(pixels < 0))
    if below:
        warnings.warn(f"{below} negative values of the image are set to 0", stacklevel=3)
        pixels = np.maximum(pixels, 0)
    return pixels
