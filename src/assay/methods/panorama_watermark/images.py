"""Image files in and out: JPEG, PNG, WebP and TIFF of 8 bits, PNG and TIFF of 16, OpenEXR and Radiance HDR.

Pixels change; EXIF, XMP and the colour profile are copied. PNG keeps its ancillary chunks byte by byte. What
a file is, is decided by its content, not by its name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from assay.errors import InputError
from assay.files import replacing
from assay.methods.panorama_watermark import gpano
from assay.methods.panorama_watermark.hdr_files import (
    EXR_SIGNATURE,
    is_radiance,
    read_exr,
    read_radiance,
    write_exr,
    write_radiance,
)
from assay.methods.panorama_watermark.picture import Picture
from assay.methods.panorama_watermark.pillow_files import MODES, read_with_pillow, write_with_pillow
from assay.methods.panorama_watermark.png_files import is_png, png_bit_depth, read_deep_png, write_png
from assay.methods.panorama_watermark.tiff_files import is_tiff, read_tiff, write_tiff

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".exr", ".hdr")


def read_image(path: Path | str, cropped_area: gpano.Placement | None = None) -> Picture:
    """Read a panorama from a file.

    Args:
        path: the file.
        cropped_area: where a partial panorama lies; by default what its GPano metadata says.

    Raises:
        InputError: the file is missing, damaged, of a kind or mode that isn't supported, or neither twice as
            wide as high nor placed; the message names it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _placed(_read(path, head), cropped_area)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: Path, head: bytes) -> Picture:
    if head.startswith(EXR_SIGNATURE):
        return read_exr(path)
    if is_radiance(head):
        return read_radiance(path)
    if is_png(head) and png_bit_depth(path) == 16:
        return read_deep_png(path)
    return read_tiff(path) if is_tiff(head) else read_with_pillow(path)


def _placed(picture: Picture, cropped_area: gpano.Placement | None) -> Picture:
    if picture.pixels.ndim not in (2, 3):
        raise InputError(f"a picture of rows and columns is needed, the file holds {picture.pixels.shape}")
    height, width = picture.pixels.shape[:2]
    where = cropped_area or gpano.placement(picture.xmp, width, height)
    if where is None:
        return picture
    full, shown = where.place(picture.pixels)
    return replace(picture, pixels=full, shown=shown, place=(where, width, height))


def write_image(path: Path | str, picture: Picture, *, quality: int | None = None) -> None:
    """Write a picture in its own format, atomically.

    Args:
        path: where to.
        picture: full pixels (a partial panorama is cut out again), metadata and settings.
        quality: of lossy formats; by default the source's, at least 95.

    Raises:
        InputError: the quality is out of range.
    """
    if quality is not None and not 1 <= quality <= 100:
        raise InputError(f"the quality must be from 1 to 100, got {quality}")
    pixels = picture.pixels
    if picture.place:
        where, width, height = picture.place
        pixels = where.cut(pixels, width, height)
    pixels = np.ascontiguousarray(pixels)
    if not picture.hdr and not picture.place:
        height, width = pixels.shape[:2]
        picture = replace(picture, xmp=gpano.with_gpano(picture.xmp, width, height))
    with replacing(path) as temporary:
        if picture.format == "EXR":
            write_exr(temporary, pixels, picture)
        elif picture.format == "HDR":
            write_radiance(temporary, pixels)
        elif picture.format == "TIFF" and pixels.dtype != np.uint8:
            write_tiff(temporary, pixels, picture)
        elif picture.format == "PNG":
            write_png(temporary, pixels, picture)
        else:
            write_with_pillow(temporary, pixels, picture, quality)


def as_pixels(
    image: np.ndarray | Image.Image | Path, hdr: bool
) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """Pixels, which of them are shown (None: all), and whether they are linear light.

    Raises:
        InputError: the file cannot be read, or a Pillow image is of a mode that isn't supported.
    """
    if isinstance(image, (str, Path)):
        picture = read_image(image)
        return picture.pixels, picture.shown, picture.hdr
    if isinstance(image, np.ndarray):
        return image, None, hdr
    if not isinstance(image, Image.Image):
        raise InputError(f"an image is an array, a Pillow image or a path, not {type(image).__name__}")
    if image.mode not in (*MODES, "I;16"):
        raise InputError(f"pixels of mode {image.mode} are not supported: convert to RGB or grey first")
    return np.array(image), None, hdr
