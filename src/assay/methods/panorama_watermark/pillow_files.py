"""JPEG, WebP, and PNG and TIFF of 8 bits, through Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, JpegImagePlugin, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from assay.errors import InputError
from assay.methods.panorama_watermark.picture import Picture, check_single, undecodable, xmp_of
from assay.methods.panorama_watermark.tiff_directories import append_directories, copyable_directories

MODES = ("L", "LA", "RGB", "RGBA")
# Tags of a TIFF file that say how its pixels are stored: those of the new encoding hold.
_PIXEL_TAGS = (256, 257, 258, 259, 262, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 339)
_XMP_TAG, _EXIF_TAG, _GPS_TAG = 700, 34665, 34853


def read_with_pillow(path: Path) -> Picture:
    """Read a picture of 8 bits a sample.

    Raises:
        InputError: the file is damaged, of another format or mode, or holds several pictures.
    """
    try:
        with Image.open(path) as image:
            return _picture(path, image)
    except InputError:
        raise
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise undecodable(error) from None


def _picture(path: Path, image: Image.Image) -> Picture:
    kind = "JPEG" if image.format == "MPO" else image.format or "?"
    if kind not in ("JPEG", "PNG", "WEBP", "TIFF"):
        raise InputError(f"{kind} files are not supported: use JPEG, PNG, WebP, TIFF, EXR or HDR")
    if image.mode not in MODES:
        raise InputError(
            f"pixels of mode {image.mode} (CMYK, palette, ...) are not supported: convert to RGB or grey "
            "first"
        )
    # The other pictures of a multi-picture JPEG are previews and views from elsewhere.
    if image.format != "MPO":
        check_single(getattr(image, "n_frames", 1))
    settings: dict[str, Any] = {}
    exif = image.info.get("exif")
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        settings["quality"] = _jpeg_quality(image.quantization)
        sampling = JpegImagePlugin.get_sampling(image)
        settings["subsampling"] = sampling if sampling in (0, 1, 2) else 0
    elif kind == "WEBP":
        settings["lossless"] = b"VP8L" in path.read_bytes()[:4096]
    elif kind == "TIFF":
        tags = image.getexif()
        exif = tags.tobytes() or None
        settings["compression"] = image.info.get("compression")
        if _EXIF_TAG in tags or _GPS_TAG in tags:
            settings["directories"] = copyable_directories(path)
    elif kind == "PNG":
        settings["source"] = path.read_bytes()
    pixels = np.array(image)
    xmp, icc = xmp_of(image.info), image.info.get("icc_profile")
    return Picture(pixels, kind, exif=exif, xmp=xmp, icc=icc, settings=settings)


def _jpeg_quality(tables: dict[int, list[int]]) -> int:
    """The libjpeg quality whose luma table is nearest to a file's."""
    # The standard luma table sums to 3688 at quality 50; its scale is 5000 / q below 50 and 200 - 2 q above.
    scale = 100 * sum(tables[min(tables)]) / 3688
    return round(min(100, max(1, 5000 / scale if scale > 100 else (200 - scale) / 2)))


def write_with_pillow(path: Path, pixels: np.ndarray, picture: Picture, quality: int | None) -> None:
    """Write JPEG, WebP or an 8-bit TIFF with a picture's metadata and settings.

    Args:
        path: where to.
        pixels: of 8 bits.
        picture: the metadata and settings.
        quality: of JPEG and lossy WebP; by default the source's, at least 95.
    """
    settings = picture.settings
    options: dict[str, Any] = {"exif": picture.exif, "icc_profile": picture.icc}
    if picture.format == "JPEG":
        options["quality"] = quality or max(95, settings.get("quality", 95))
        options["subsampling"] = settings.get("subsampling", 0)
        options["xmp"] = picture.xmp
    elif picture.format == "WEBP":
        options |= {"lossless": settings.get("lossless", True), "quality": quality or 95, "xmp": picture.xmp}
        options["exact"] = True
    else:
        options |= _tiff_tags(picture)
        compression = settings.get("compression")
        options["compression"] = None if compression == "jpeg" else compression
    given = {name: value for name, value in options.items() if value is not None}
    Image.fromarray(pixels).save(path, picture.format, **given)
    if directories := settings.get("directories"):
        append_directories(path, directories)


def _tiff_tags(picture: Picture) -> dict[str, Any]:
    """Pillow takes tags either from an EXIF block or from `tiffinfo`."""
    if picture.exif:
        exif = Image.Exif()
        exif.load(picture.exif)
        if picture.xmp:
            exif[_XMP_TAG] = picture.xmp
        for tag in (*_PIXEL_TAGS, _EXIF_TAG, _GPS_TAG):
            exif.pop(tag, None)
        return {"exif": exif}
    tags = ImageFileDirectory_v2()
    if picture.xmp:
        tags[_XMP_TAG] = picture.xmp
        tags.tagtype[_XMP_TAG] = 1
    return {"tiffinfo": tags}
