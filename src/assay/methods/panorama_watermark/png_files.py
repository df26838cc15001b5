"""PNG files: 16 bits, and carrying a file's metadata over to newly encoded pixels, chunk by chunk."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from assay.errors import require
from assay.methods.panorama_watermark.picture import Picture, undecodable, xmp_of

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_XMP = b"XML:com.adobe.xmp"
# Chunks that say how pixels are stored: those of the new encoding hold.
_PIXELS = (b"IHDR", b"IDAT", b"IEND", b"PLTE", b"tRNS", b"bKGD", b"hIST", b"sBIT", b"acTL", b"fcTL", b"fdAT")
# Chunks that must precede the pixels.
_BEFORE = (b"cHRM", b"gAMA", b"iCCP", b"sRGB", b"cICP", b"mDCV", b"cLLI", b"pHYs", b"sPLT")


def is_png(head: bytes) -> bool:
    """Does a file that starts so claim to be a PNG?"""
    return head.startswith(_SIGNATURE)


def png_bit_depth(path: Path) -> int:
    """Bits a sample, from the header chunk; 0 in a file that is too short to have one."""
    with path.open("rb") as file:
        head = file.read(25)
    return head[24] if len(head) == 25 else 0


def read_deep_png(path: Path) -> Picture:
    """Read a PNG of 16 bits, which Pillow would cut to 8.

    Raises:
        InputError: the file is damaged.
    """
    codecs = require("imagecodecs", extra="sphere")
    data = path.read_bytes()
    try:
        pixels = codecs.png_decode(data)
        with Image.open(path) as image:
            info = dict(image.info)
    except Exception as error:
        raise undecodable(error) from None
    exif, xmp, icc = info.get("exif"), xmp_of(info), info.get("icc_profile")
    return Picture(pixels, "PNG", exif=exif, xmp=xmp, icc=icc, settings={"source": data})


def write_png(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    """Write a PNG of 8 or 16 bits with a picture's metadata."""
    if pixels.dtype == np.uint16:
        codecs = require("imagecodecs", extra="sphere")
        encoded = codecs.png_encode(pixels, level=6)
    else:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        encoded = buffer.getvalue()
    path.write_bytes(_with_metadata(picture.settings.get("source"), encoded, picture))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(_SIGNATURE)
    while position + 12 <= len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        yield data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        position += 12 + length


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _with_metadata(source: bytes | None, encoded: bytes, picture: Picture) -> bytes:
    """Newly encoded pixels with the metadata of a source file, or that of `picture` where there is none.

    Args:
        source: the original PNG file, whose ancillary chunks are copied; None for a picture from elsewhere.
        encoded: the PNG with the new pixels; its own ancillary chunks are dropped.
        picture: its XMP is written, in place of the source's.
    """
    kept = [(name, body) for name, body in _chunks(source or _SIGNATURE) if name not in _PIXELS]
    kept = [(name, body) for name, body in kept if not body.startswith(_XMP + b"\0")]
    if source is None:
        if picture.icc:
            kept.append((b"iCCP", b"ICC profile\0\0" + zlib.compress(picture.icc)))
        if picture.exif:
            kept.append((b"eXIf", picture.exif.removeprefix(b"Exif\0\0")))
    if picture.xmp:
        kept.append((b"iTXt", _XMP + b"\0\0\0\0\0" + picture.xmp))
    before = b"".join(_chunk(name, body) for name, body in kept if name in _BEFORE)
    after = b"".join(_chunk(name, body) for name, body in kept if name not in _BEFORE)
    new = list(_chunks(encoded))
    header = b"".join(_chunk(name, body) for name, body in new if name == b"IHDR")
    pixels = b"".join(_chunk(name, body) for name, body in new if name == b"IDAT")
    return _SIGNATURE + header + before + after + pixels + _chunk(b"IEND", b"")
