"""Google's Photo Sphere metadata (GPano, in XMP).

Viewers know a panorama by it, and it says where in the sphere a partial one lies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from assay.errors import InputError

NAMESPACE = "http://ns.google.com/photos/1.0/panorama/"
_HEAD = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'


@dataclass(frozen=True)
class Placement:
    """Where an image lies in the full sphere, in pixels of the full panorama.

    Args:
        left: column of the image's left edge.
        top: row of its top edge.
        full_width: width of the full panorama.
        full_height: its height; half the width.
    """

    left: int
    top: int
    full_width: int
    full_height: int

    def place(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The full panorama, zero outside the image, and which of its pixels the image shows.

        Raises:
            InputError: the image doesn't fit.
        """
        height, width = pixels.shape[:2]
        fits = min(self.left, self.top) >= 0
        fits = fits and self.top + height <= self.full_height and width <= self.full_width
        if not fits or self.full_width != 2 * self.full_height:
            raise InputError(
                f"an image of {width} x {height} at ({self.left}, {self.top}) doesn't fit a panorama of "
                f"{self.full_width} x {self.full_height}, which must be twice as wide as high"
            )
        full = np.zeros((self.full_height, self.full_width, *pixels.shape[2:]), pixels.dtype)
        shown = np.zeros(full.shape[:2], bool)
        columns = (self.left + np.arange(width)) % self.full_width
        full[self.top : self.top + height, columns] = pixels
        shown[self.top : self.top + height, columns] = True
        return full, shown

    def cut(self, full: np.ndarray, width: int, height: int) -> np.ndarray:
        """The part of a full panorama that the image is."""
        columns = (self.left + np.arange(width)) % self.full_width
        return full[self.top : self.top + height, columns]


def gpano_values(xmp: bytes | None) -> dict[str, str]:
    """The GPano properties of an XMP packet by name, from attributes and from elements."""
    if not xmp:
        return {}
    text = xmp.decode("utf-8", errors="replace")
    attributes = re.findall(r"GPano:(\w+)\s*=\s*[\"']([^\"']*)[\"']", text)
    elements = re.findall(r"<GPano:(\w+)>\s*([^<]*?)\s*</GPano:\1>", text)
    return dict(attributes + elements)


def placement(xmp: bytes | None, width: int, height: int) -> Placement | None:
    """Where GPano says that an image lies, or None for a full panorama or one without those properties.

    Sizes that were written for another resolution of the image are scaled to this one.

    Raises:
        InputError: the properties are there but aren't usable.
    """
    values = gpano_values(xmp)
    names = (
        "CroppedAreaLeftPixels",
        "CroppedAreaTopPixels",
        "FullPanoWidthPixels",
        "FullPanoHeightPixels",
        "CroppedAreaImageWidthPixels",
        "CroppedAreaImageHeightPixels",
    )
    if not all(name in values for name in names):
        return None
    try:
        left, top, full_width, full_height, cropped_width, cropped_height = (
            int(float(values[name])) for name in names
        )
    except (ValueError, OverflowError):
        raise InputError("the image's GPano metadata holds sizes that aren't numbers") from None
    if min(cropped_width, cropped_height, full_width, full_height) <= 0:
        raise InputError("the image's GPano metadata holds sizes that aren't positive")
    if (cropped_width, cropped_height) == (full_width, full_height):
        return None
    across, down = width / cropped_width, height / cropped_height
    rows = round(full_height * down)
    return Placement(round(left * across), round(top * down), 2 * rows, rows)


def gpano_packet(width: int, height: int) -> bytes:
    """A new XMP packet that declares a full equirectangular panorama."""
    return (
        _HEAD
        + '<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
        + '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n'
        + _description(width, height)
        + '</rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>'
    ).encode()


def _description(width: int, height: int) -> str:
    return (
        f'<rdf:Description rdf:about="" xmlns:GPano="{NAMESPACE}"'
        ' GPano:ProjectionType="equirectangular" GPano:UsePanoramaViewer="True"'
        f' GPano:FullPanoWidthPixels="{width}" GPano:FullPanoHeightPixels="{height}"'
        f' GPano:CroppedAreaImageWidthPixels="{width}" GPano:CroppedAreaImageHeightPixels="{height}"'
        ' GPano:CroppedAreaLeftPixels="0" GPano:CroppedAreaTopPixels="0"/>\n'
    )


def with_gpano(xmp: bytes | None, width: int, height: int) -> bytes:
    """An XMP packet that declares a panorama: the same bytes where it did, with a description added else."""
    if not xmp:
        return gpano_packet(width, height)
    if "ProjectionType" in gpano_values(xmp):
        return xmp
    end = xmp.rfind(b"</rdf:RDF>")
    if end < 0:
        return xmp
    return xmp[:end] + _description(width, height).encode() + xmp[end:]


def resized(xmp: bytes | None, across: float, down: float) -> bytes | None:
    """An XMP packet with its GPano sizes scaled, so that they aren't stale after the image was resized."""
    if not xmp:
        return xmp

    def scaled(match: re.Match[bytes]) -> bytes:
        factor = across if b"Width" in match[2] or b"Left" in match[2] else down
        return match[1] + match[2] + match[3] + str(round(float(match[4]) * factor)).encode()

    pattern = rb"(GPano:)((?:Full|Cropped)\w*Pixels)(\s*=\s*[\"']|>)(\d+(?:\.\d+)?)"
    return re.sub(pattern, scaled, xmp)
