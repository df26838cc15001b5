"""Folders of images in and out: any mode and size in, PNG files and contact sheets out.

A folder may hold images directly or in sub-folders. Sub-folders name classes; captions and labels may also
stand in `metadata.csv` or `metadata.jsonl` with the columns `file_name`, `text` and `label`, the layout that
Hugging Face's datasets read.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError
from torch import Tensor

from assay.errors import InputError
from assay.files import replacing

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
_METADATA = ("metadata.csv", "metadata.jsonl")
_SHEET_SIDE = 1600
_LARGEST_ZOOM = 8
# Bytes of images that are held in memory.
_MEMORY = 2**31


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder, in one size.

    Args:
        root: the folder.
        pixels: (n, channels, size, size), of 8 bits.
        names: paths relative to the folder, with slashes; one an image.
        unreadable: the files that could not be read, with the reason.
    """

    root: Path
    pixels: UInt8[Tensor, "n channels size size"]
    names: list[str]
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    @property
    def images(self) -> Float[Tensor, "n channels size size"]:
        """The pixels in [0, 1]."""
        return self.pixels.float() / 255


def list_images(folder: Path | str) -> list[str]:
    """The image files of a folder and its sub-folders, by their suffix: paths relative to it, sorted.

    Raises:
        InputError: there is no such folder, or no image in it.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder of images")
    found = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    if not found:
        raise InputError(f"{root} holds no images ({', '.join(SUFFIXES)})")
    return found


def read_image(
    path: Path | str, *, size: int | None = None, channels: int = 3
) -> UInt8[np.ndarray, "channels height width"]:
    """Read an image file of any mode as 8-bit grey or RGB.

    Transparent pixels show white, 16-bit values are scaled to 8, an orientation tag is applied, and of an
    animation the first picture is taken.

    Args:
        path: the file.
        size: cut the middle square out and resize it to this side (bilinear with antialiasing); None changes
            nothing.
        channels: 1 or 3.

    Raises:
        InputError: the file is missing, damaged, or no image.
    """
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened) or opened
            image = _as_mode(image, "L" if channels == 1 else "RGB")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be decoded: {str(error).splitlines()[0]}") from None
    if size is not None:
        if image.width != image.height:
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            image = image.crop((left, top, left + side, top + side))
        if image.width != size:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.array(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1).copy()


def _as_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow cuts values above 255 off instead of scaling them.
        values = np.asarray(image, dtype=np.float64)
        return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
            raise ValueError("its values of floating point are not in [0, 1]")
        return Image.fromarray((255 * values).round().astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        shown = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
    return image.convert(mode)


def read_images(
    folder: Path | str,
    size: int | None = None,
    channels: int | None = None,
    *,
    advance: Callable[[int], None] = lambda count: None,
) -> ImageFolder:
    """Read the images of a folder in one size; files that cannot be read are left out and listed.

    Args:
        folder: images, perhaps in sub-folders.
        size: the side; by default the smaller side of the first image that can be read.
        channels: 1 or 3; by default 1 when every image is grey, else 3.
        advance: called with the number of files read since the last call.

    Raises:
        InputError: there is no folder, or no image that can be read.
    """
    root = Path(folder)
    listed = list_images(root)
    kept: list[str] = []
    unreadable: list[tuple[str, str]] = []
    rows = np.empty(0, dtype=np.uint8)
    for name in listed:
        advance(1)
        try:
            pixels = read_image(root / name, size=size, channels=channels or 3)
        except InputError as error:
            unreadable.append((name, str(error)))
            continue
        if size is None:
            size = min(pixels.shape[1:])
            pixels = read_image(root / name, size=size, channels=channels or 3)
        if not kept:
            rows = _room((len(listed), *pixels.shape))
        rows[len(kept)] = pixels
        kept.append(name)
    if not kept:
        raise InputError(f"none of the {len(listed)} images of {root} can be read: {unreadable[0][1]}")
    rows = rows[: len(kept)]
    if channels is None and all((row == row[:1]).all() for row in rows):
        rows = rows[:, :1]
    return ImageFolder(root, torch.from_numpy(rows), kept, unreadable)


def _room(shape: tuple[int, ...]) -> np.ndarray:
    """An array for images: in memory, or in an unnamed temporary file when there are gigabytes of them."""
    if np.prod(shape, dtype=np.int64) <= _MEMORY:
        return np.empty(shape, dtype=np.uint8)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=np.uint8, mode="w+", shape=shape)


def read_classes(folder: ImageFolder) -> tuple[Tensor, list[str]]:
    """The class of each image: the column `label` of the metadata, or else the sub-folder that it is in.

    Returns:
        Numbers (n,), and the names of the classes, sorted.

    Raises:
        InputError: an image has no class, or there is only one class.
    """
    table = _read_metadata(folder.root)
    if any(row.get("label") not in (None, "") for row in table.values()):
        labels = [str(table.get(name, {}).get("label") or "") for name in folder.names]
    else:
        labels = [Path(name).parent.as_posix() if "/" in name else "" for name in folder.names]
    for name, label in zip(folder.names, labels, strict=True):
        if not label:
            raise InputError(
                f"{folder.root / name} has no class: sort the images into a sub-folder a class, or list them "
                "in metadata.csv with the columns file_name and label"
            )
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise InputError(f"all images of {folder.root} are of the class {classes[0]!r}: there must be two")
    return torch.tensor([classes.index(label) for label in labels]), classes


def read_captions(folder: ImageFolder) -> list[str]:
    """The caption of each image: the column `text` of the metadata.

    Raises:
        InputError: an image has no caption.
    """
    table = _read_metadata(folder.root)
    captions = [str(table.get(name, {}).get("text") or "").strip() for name in folder.names]
    for name, caption in zip(folder.names, captions, strict=True):
        if not caption:
            raise InputError(
                f"{folder.root / name} has no caption: list the images in metadata.csv with the columns "
                "file_name and text"
            )
    return captions


def _read_metadata(root: Path) -> dict[str, dict[str, Any]]:
    """The rows of the metadata by file name; empty without metadata."""
    for name in _METADATA:
        path = root / name
        if not path.is_file():
            continue
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                if path.suffix == ".csv":
                    rows: list[Any] = list(csv.DictReader(file))
                else:
                    rows = [json.loads(line) for line in file if line.strip()]
            return {str(row["file_name"]): row for row in rows}
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as a table with the column file_name: {error}") from None
    return {}


def to_bytes(
    images: Float[Tensor, "n channels height width"],
) -> UInt8[np.ndarray, "n channels height width"]:
    """Images in [0, 1] as 8-bit values."""
    return (images.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def write_png(
    path: Path | str,
    image: Float[Tensor, "channels height width"] | UInt8[np.ndarray, "channels height width"],
    facts: dict[str, str] | None = None,
) -> None:
    """Write an image as PNG, atomically.

    Args:
        path: the file.
        image: in [0, 1], or of 8 bits; one or three channels.
        facts: kept in the file as text, e.g. the seed.
    """
    pixels = image if isinstance(image, np.ndarray) else to_bytes(image[None])[0]
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    text = PngImagePlugin.PngInfo()
    for name, value in (facts or {}).items():
        text.add_text(name, value)
    with replacing(path) as temporary:
        picture.save(temporary, "PNG", pnginfo=text)


def read_facts(path: Path | str) -> dict[str, str]:
    """The texts that `write_png` kept in a file; empty if it is damaged or has none."""
    try:
        with Image.open(path) as image:
            image.load()
            return {str(name): str(value) for name, value in getattr(image, "text", {}).items()}
    except (OSError, SyntaxError, ValueError):
        return {}


def contact_sheet(
    images: Float[Tensor, "n channels height width"] | UInt8[np.ndarray, "n channels height width"],
    columns: int | None = None,
) -> UInt8[np.ndarray, "channels height width"]:
    """All images in a grid, small ones enlarged without smoothing, with thin grey lines between them.

    Args:
        images: in [0, 1], or of 8 bits, of one size.
        columns: images a row; by default a square grid.

    Raises:
        InputError: there is no image.
    """
    pixels = images if isinstance(images, np.ndarray) else to_bytes(images)
    if not len(pixels):
        raise InputError("a contact sheet needs at least one image")
    count, channels, height, width = pixels.shape
    columns = min(columns or int(np.ceil(np.sqrt(count))), count)
    rows = -(-count // columns)
    zoom = int(np.clip(_SHEET_SIDE // (max(columns, rows) * max(height, width)), 1, _LARGEST_ZOOM))
    pixels = pixels.repeat(zoom, axis=2).repeat(zoom, axis=3)
    height, width, line = height * zoom + 1, width * zoom + 1, 128
    sheet = np.full((channels, rows * height + 1, columns * width + 1), line, dtype=np.uint8)
    for index, image in enumerate(pixels):
        top, left = index // columns * height + 1, index % columns * width + 1
        sheet[:, top : top + height - 1, left : left + width - 1] = image
    return sheet
