"""TIFF files of 16 bits and of floats, through tifffile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import InputError, require
from assay.methods.panorama_watermark.picture import Picture, check_single, linear_light, undecodable
from assay.methods.panorama_watermark.pillow_files import read_with_pillow
from assay.methods.panorama_watermark.tiff_directories import append_directories, copyable_directories

_XMP, _ICC, _EXIF, _GPS = 700, 34675, 34665, 34853
# Tags of the first directory that the writer sets itself, or that point into the old file.
_STRUCTURAL_TAGS = frozenset(
    (
        *(254, 255, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 282, 283, 284, 296, 297, 305, 317),
        *(320, 322, 323, 324, 325, 330, 338, 339, 347, 529, 530, 531, 532, _XMP, _EXIF, _ICC, _GPS),
    )
)


def is_tiff(head: bytes) -> bool:
    """Does a file that starts so claim to be a TIFF?"""
    return head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"))


def read_tiff(path: Path) -> Picture:
    """Read a TIFF file; one of 8 bits goes to Pillow.

    Raises:
        InputError: the file is damaged, of another kind of pixels, holds several pictures, or values that
            aren't finite.
    """
    tifffile = require("tifffile", extra="sphere")
    try:
        with tifffile.TiffFile(path) as file:
            check_single(len(file.pages))
            page = file.pages[0]
            photometric = int(page.photometric)
            if photometric not in (1, 2):
                raise InputError(
                    f"TIFF of photometric {photometric} (CMYK, palette, ...) is not supported: convert to "
                    "RGB first"
                )
            if page.dtype == np.uint8:
                return read_with_pillow(path)
            if page.dtype not in (np.uint16, np.float16, np.float32):
                raise InputError(
                    f"TIFF of {page.bitspersample}-bit {page.dtype} is not supported: use 8 or 16 bits, or "
                    "floats"
                )
            pixels = page.asarray()
            if page.planarconfig == 2:
                pixels = np.moveaxis(pixels, 0, -1)
            values = {tag.code: tag.value for tag in page.tags.values()}
            settings = {
                "tags": [
                    (tag.code, tag.dtype, tag.count, tag.value, True)
                    for tag in page.tags.values()
                    if tag.code not in _STRUCTURAL_TAGS and isinstance(tag.value, (str, bytes, int, tuple))
                ],
                "compression": int(page.compression),
                "resolution": (values.get(282, (1, 1)), values.get(283, (1, 1)), values.get(296, 1)),
            }
    except InputError:
        raise
    except Exception as error:
        raise undecodable(error) from None
    if _EXIF in values or _GPS in values:
        settings["directories"] = copyable_directories(path)
    hdr = np.issubdtype(pixels.dtype, np.floating)
    return Picture(
        linear_light(pixels) if hdr else pixels,
        "TIFF",
        hdr=hdr,
        xmp=_as_bytes(values.get(_XMP)),
        icc=_as_bytes(values.get(_ICC)),
        settings=settings,
    )


def _as_bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value) if not isinstance(value, str) else value.encode()


def write_tiff(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    """Write a TIFF file of 16 bits or floats with a picture's tags, XMP, profile and EXIF directories."""
    tifffile = require("tifffile", extra="sphere")
    settings = picture.settings
    tags = list(settings.get("tags", []))
    if picture.xmp:
        tags.append((_XMP, 1, len(picture.xmp), picture.xmp, True))
    colours = pixels.ndim == 3 and pixels.shape[2] >= 3
    x, y, unit = settings.get("resolution", ((1, 1), (1, 1), 1))
    tifffile.imwrite(
        path,
        pixels,
        byteorder="<",
        photometric="rgb" if colours else "minisblack",
        compression="zlib" if settings.get("compression", 1) != 1 else None,
        resolution=(x, y),
        resolutionunit=unit,
        iccprofile=picture.icc,
        extratags=tags,
        metadata=None,
        software=False,
    )
    if directories := settings.get("directories"):
        append_directories(path, directories)
