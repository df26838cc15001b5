"""OpenEXR and Radiance HDR files: linear light."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.errors import InputError, require
from assay.methods.panorama_watermark.picture import Picture, linear_light, undecodable

EXR_SIGNATURE = b"\x76\x2f\x31\x01"
# What the writer decides anew.
_STRUCTURE = ("channels", "dataWindow", "displayWindow", "chunkCount", "tiles")


def read_exr(path: Path) -> Picture:
    """Read the colours (or the luminance) of an OpenEXR file.

    Raises:
        InputError: the file is damaged, has no such channels, or values that aren't finite.
    """
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
        raise undecodable(error) from None
    return Picture(linear_light(pixels), "EXR", hdr=True, settings={"header": header})


def write_exr(path: Path, pixels: np.ndarray, picture: Picture) -> None:
    """Write an OpenEXR file with a picture's header attributes."""
    openexr = require("OpenEXR", extra="sphere")
    attributes = picture.settings.get("header", {})
    header = {name: value for name, value in attributes.items() if name not in _STRUCTURE}
    header["type"] = openexr.scanlineimage
    name = "Y" if pixels.ndim == 2 else "RGBA" if pixels.shape[2] == 4 else "RGB"
    openexr.File(header, {name: pixels}).write(str(path))


def is_radiance(head: bytes) -> bool:
    """Does a file that starts so claim to be a Radiance picture?"""
    return head.startswith((b"#?RADIANCE", b"#?RGBE"))


def read_radiance(path: Path) -> Picture:
    """Read a Radiance HDR file.

    Raises:
        InputError: the file is damaged, or has values that aren't finite.
    """
    codecs = require("imagecodecs", extra="sphere")
    try:
        pixels = np.array(codecs.rgbe_decode(path.read_bytes()))
    except Exception as error:
        raise undecodable(error) from None
    return Picture(linear_light(pixels), "HDR", hdr=True)


def write_radiance(path: Path, pixels: np.ndarray) -> None:
    """Write a Radiance HDR file."""
    codecs = require("imagecodecs", extra="sphere")
    path.write_bytes(codecs.rgbe_encode(pixels.astype(np.float32)))
