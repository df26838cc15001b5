"""Image files in and out: JPEG, PNG, WebP and TIFF of 8 bits, PNG and TIFF of 16, OpenEXR and Radiance HDR.

Pixels change; EXIF, XMP and the colour profile are copied. PNG keeps its ancillary chunks byte by byte. What
a file is, is decided by its content, not by its name.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.errors import InputError, require
from assay.methods.panorama_watermark import gpano
from assay.methods.panorama_watermark.png_chunks import copy_chunks, is_png, png_bit_depth

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".exr", ".hdr")
_MODES = ("L", "LA", "RGB", "RGBA")


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

    pixels: np.ndarray
    format: str
    hdr: bool = False
    shown: np.ndarray | None = None
    place: tuple[gpano.Placement, int, int] | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    icc: bytes | None = None
    settings: dict[str, Any] = field(default_factory=dict)


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
        if head[:4] == b"\x76\x2f\x31\x01":
            picture = _read_exr(path)
        elif head[:10] in (b"#?RADIANCE", b"#?RGBE\n"[:10]) or head[:6] == b"#?RGBE":
            picture = _read_radiance(path)
        elif is_png(head) and png_bit_depth(path) == 16:
            picture = _read_png16(path)
        elif head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            picture = _read_tiff(path)
        else:
            picture = _read_pillow(path)
        return _placed(picture, cropped_area)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _placed(picture: Picture, cropped_area: gpano.Placement | None) -> Picture:
    if picture.pixels.ndim not in (2, 3):
        raise InputError(f"a picture of rows and columns is needed, the file holds {picture.pixels.shape}")
    height, width = picture.pixels.shape[:2]
    where = cropped_area or gpano.placement(picture.xmp, width, height)
    if where is None:
        return picture
    full, shown = where.place(picture.pixels)
    return replace(picture, pixels=full, shown=shown, place=(where, width, height))


def _read_pillow(path: Path) -> Picture:
    from PIL import Image, JpegImagePlugin, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            kind = "JPEG" if image.format == "MPO" else image.format or "?"
            if kind not in ("JPEG", "PNG", "WEBP", "TIFF"):
                raise InputError(f"{kind} files are not supported: use JPEG, PNG, WebP, TIFF, EXR or HDR")
            if image.mode not in _MODES:
                raise InputError(
                    f"pixels of mode {image.mode} (CMYK, palette, ...) are not supported: convert to RGB "
                    "or grey first"
                )
            # The other pictures of a multi-picture JPEG are previews and views from elsewhere.
            if image.format != "MPO":
                _check_single(getattr(image, "n_frames", 1))
            settings: dict[str, Any] = {}
            if isinstance(image, JpegImagePlugin.JpegImageFile):
                settings["quality"] = _jpeg_quality(image.quantization)
                sampling = JpegImagePlugin.get_sampling(image)
                settings["subsampling"] = sampling if sampling in (0, 1, 2) else 0
            if kind == "WEBP":
                settings["lossless"] = b"VP8L" in path.read_bytes()[:4096]
            xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp")
            xmp = xmp.encode() if isinstance(xmp, str) else xmp
            exif = image.info.get("exif")
            if kind == "TIFF":
                exif = image.getexif().tobytes() or None
                settings["compression"] = image.info.get("compression")
            if kind == "PNG":
                settings["source"] = path.read_bytes()
            pixels = np.array(image)
            icc = image.info.get("icc_profile")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the image cannot be decoded: {str(error).splitlines()[0]}") from None
    return Picture(pixels, kind, exif=exif, xmp=xmp, icc=icc, settings=settings)


def _check_single(pictures: int) -> None:
    if pictures > 1:
        raise InputError(f"the file holds {pictures} pictures, of which one can be marked: split it first")


def _jpeg_quality(tables: dict[int, list[int]]) -> int:
    """The libjpeg quality whose luma table is nearest to a file's."""
    # The standard luma table sums to 3688 at quality 50; its scale is 5000 / q below 50 and 200 - 2 q above.
    scale = 100 * sum(tables[min(tables)]) / 3688
    return round(min(100, max(1, 5000 / scale if scale > 100 else (200 - scale) / 2)))


def _read_png16(path: Path) -> Picture:
    codecs = require("imagecodecs", extra="sphere")
    from PIL import Image

    data = path.read_bytes()
    try:
        pixels = codecs.png_decode(data)
        with Image.open(path) as image:
            info = dict(image.info)
    except Exception as error:
        raise InputError(f"the image cannot be decoded: {error}") from None
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp")
    return Picture(
        pixels,
        "PNG",
        exif=info.get("exif"),
        xmp=xmp.encode() if isinstance(xmp, str) else xmp,
        icc=info.get("icc_profile"),
        settings={"source": data},
    )


# Tags of the first directory that the writer sets itself, or that point into the old file.
_STRUCTURAL_TAGS = frozenset(
    (
        *(254, 255, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 282, 283, 284, 296, 297, 305, 317),
        *(320, 322, 323, 324, 325, 330, 338, 339, 347, 529, 530, 531, 532, 700, 34665, 34675, 34853),
    )
)


def _read_tiff(path: Path) -> Picture:
    tifffile = require("tifffile", extra="sphere")
    try:
        with tifffile.TiffFile(path) as file:
            _check_single(len(file.pages))
            page = file.pages[0]
            bits, photometric = page.bitspersample, int(page.photometric)
            if photometric not in (1, 2):
                raise InputError(
                    f"TIFF of photometric {photometric} (CMYK, palette, ...) is not supported: convert to "
                    "RGB first"
                )
            if page.dtype == np.uint8:
                return _read_pillow(path)
            if page.dtype not in (np.uint16, np.float16, np.float32):
                raise InputError(
                    f"TIFF of {bits}-bit {page.dtype} is not supported: use 8 or 16 bits, or floats"
                )
            pixels = page.asarray()
            if page.planarconfig == 2:
                pixels = np.moveaxis(pixels, 0, -1)
            values = {tag.code: tag.value for tag in page.tags.values()}
            extra = [
                (tag.code, tag.dtype, tag.count, tag.value, True)
                for tag in page.tags.values()
                if tag.code not in _STRUCTURAL_TAGS and isinstance(tag.value, (str, bytes, int, tuple))
            ]
            compression = int(page.compression)
            resolution = (values.get(282, (1, 1)), values.get(283, (1, 1)), values.get(296, 1))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the image cannot be decoded: {error}") from None
    hdr = np.issubdtype(pixels.dtype, np.floating)
    if 34665 in values or 34853 in values:
        warnings.warn(
            f"{path}: the EXIF directory of a TIFF of more than 8 bits cannot be copied; its XMP, "
            "profile and main tags are",
            stacklevel=3,
        )
    xmp = values.get(700)
    settings = {"tags": extra, "compression": compression, "resolution": resolution}
    return Picture(
        _light(pixels) if hdr else pixels,
        "TIFF",
        hdr=hdr,
        xmp=_as_bytes(xmp),
        icc=_as_bytes(values.get(34675)),
        settings=settings,
    )


def _as_bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value) if not isinstance(value, str) else value.encode()


def _light(pixels: np.ndarray) -> np.ndarray:
    """Linear light, checked: finite, negative values set to 0 with a warning."""
    bad = int(np.count_nonzero(~np.isfinite(pixels)))
    if bad:
        raise InputError(f"{bad} values of the image are not finite: repair them first")
    below = int(np.count_nonzero(pixels < 0))
    if below:
        warnings.warn(f"{below} negative values of the image are set to 0", stacklevel=3)
        pixels = np.maximum(pixels, 0)
    return pixels


def _read_exr(path: Path) -> Picture:
    openexr = require("OpenEXR", extra="sphere")
    try:
        file = openexr.File(str(path))
        channels = file.channels()
        names = [name for name in ("RGB", "RGBA") if name in channels]
        if names:
            pixels = np.array(channels[names[0]].pixels)
        elif set("RGB") <= set(channels):
            pixels = np.stack([channels[name].pixels for name in "RGB"], axis=-1)
        elif "Y" in channels:
            pixels = np.array(channels["Y"].pixels)
        else:
            raise InputError(f"the file has no channels R, G, B or Y but {', '.join(sorted(channels))}")
        header = dict(file.header())
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the image cannot be decoded: {error}") from None
    return Picture(_light(pixels), "EXR", hdr=True, settings={"header": header})


def _read_radiance(path: Path) -> Picture:
    codecs = require("imagecodecs", extra="sphere")
    try:
        pixels = np.array(codecs.rgbe_decode(path.read_bytes()))
    except Exception as error:
        raise InputError(f"the image cannot be decoded: {error}") from None
    return Picture(_light(pixels), "HDR", hdr=True)


def write_image(path: Path | str, picture: Picture, *, quality: int | None = None) -> None:
    """Write a picture in its own format, atomically.

    Args:
        path: where to.
        picture: full pixels (a partial panorama is cut out again), metadata and settings.
        quality: of lossy formats; by default the source's, at least 95.

    Raises:
        InputError: the quality is out of range.
    """
    from assay.files import replacing

    if quality is not None and not 1 <= quality <= 100:
        raise InputError(f"the quality must be from 1 to 100, got {quality}")
    pixels = picture.pixels
    if picture.place:
        where, width, height = picture.place
        pixels = where.cut(pixels, width, height)
    pixels = np.ascontiguousarray(pixels)
    if not picture.hdr:
        height, width = pixels.shape[:2]
        if not picture.place:
            picture = replace(picture, xmp=gpano.with_gpano(picture.xmp, width, height))
    with replacing(path) as temporary:
        if picture.format == "EXR":
            _write_exr(temporary, pixels, picture)
        elif picture.format == "HDR":
            codecs = require("imagecodecs", extra="sphere")
            temporary.write_bytes(codecs.rgbe_encode(pixels.astype(np.float32)))
        elif picture.format == "TIFF" and pixels.dtype != np.uint8:
            _write_tiff(temporary, pixels, picture)
        elif picture.format == "PNG":
            _write_png(temporary, pixels, picture)
        else:
            _write_pillow(temporary, pixels, picture, quality)


def _write_pillow(path: Path, pixels: np.ndarray, picture: Picture, quality: int | None) -> None:
    from PIL import Image

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
        from PIL.TiffImagePlugin import ImageFileDirectory_v2

        tags = ImageFileDirectory_v2()
        if picture.xmp:
            tags[700] = picture.xmp
            tags.tagtype[700] = 1
        options["tiffinfo"] = tags
        options["compression"] = (
            settings.get("compression") if settings.get("compression") != "jpeg" else None
        )
        if picture.exif:
            # Pillow takes tags either from an EXIF block or from `tiffinfo`.
            exif = Image.Exif()
            exif.load(picture.exif)
            if picture.xmp:
                exif[700] = picture.xmp
            for tag in (256, 257, 258, 259, 262, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 339):
                exif.pop(tag, None)
            options["exif"] = exif
            del options["tiffinfo"]
    Image.fromarray(pixels).save(path, picture.format, **{k: v for k, v in options.items() if v is not None})


def _write_png(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    if pixels.dtype == np.uint16:
        codecs = require("imagecodecs", extra="sphere")
        encoded = codecs.png_encode(pixels, level=6)
    else:
        import io

        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        encoded = buffer.getvalue()
    path.write_bytes(copy_chunks(picture.settings.get("source"), encoded, picture))


def _write_tiff(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    tifffile = require("tifffile", extra="sphere")
    tags = list(picture.settings.get("tags", []))
    if picture.xmp:
        tags.append((700, 1, len(picture.xmp), picture.xmp, True))
    colours = pixels.ndim == 3 and pixels.shape[2] >= 3
    x, y, unit = picture.settings.get("resolution", ((1, 1), (1, 1), 1))
    tifffile.imwrite(
        path,
        pixels,
        photometric="rgb" if colours else "minisblack",
        compression="zlib" if picture.settings.get("compression", 1) != 1 else None,
        resolution=(x, y),
        resolutionunit=unit,
        iccprofile=picture.icc,
        extratags=tags,
        metadata=None,
        software=False,
    )


def _write_exr(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    openexr = require("OpenEXR", extra="sphere")
    header = {
        name: value
        for name, value in picture.settings.get("header", {}).items()
        if name not in ("channels", "dataWindow", "displayWindow", "chunkCount", "tiles")
    }
    header["type"] = openexr.scanlineimage
    name = "Y" if pixels.ndim == 2 else "RGBA" if pixels.shape[2] == 4 else "RGB"
    openexr.File(header, {name: pixels}).write(str(path))


def as_pixels(image: np.ndarray | Image | Path, hdr: bool) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """Pixels, which of them are shown (None: all), and whether they are linear light.

    Raises:
        InputError: the file cannot be read, or a Pillow image is of a mode that isn't supported.
    """
    if isinstance(image, (str, Path)):
        picture = read_image(image)
        return picture.pixels, picture.shown, picture.hdr
    if isinstance(image, np.ndarray):
        return image, None, hdr
    from PIL import Image as pillow

    if not isinstance(image, pillow.Image):
        raise InputError(f"an image is an array, a Pillow image or a path, not {type(image).__name__}")
    if image.mode not in (*_MODES, "I;16"):
        raise InputError(f"pixels of mode {image.mode} are not supported: convert to RGB or grey first")
    return np.array(image), None, hdr
