"""EXIF and GPS directories of TIFF files, carried over from one file to another.

tifffile doesn't write these directories, and Pillow loses what is nested in them. They are copied entry by
entry, with their values' bytes; only offsets and the order of bytes are made new. A maker's private notes may
hold offsets of their own, which nobody else can know: their bytes are copied as they are.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# In the first directory, EXIF and GPS; inside EXIF, interoperability.
POINTERS = (34665, 34853, 40965)
# Bytes of a value of each type of the TIFF 6.0 standard, and of the words that it consists of.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_WORDS = _SIZES | {5: 4, 10: 4}
_MOST_NESTED = 3
# Leaves room for the directories within offsets of 32 bits.
_LARGEST = 2**32 - 2**28
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


@dataclass(frozen=True)
class Directory:
    """One directory.

    Args:
        entries: tag -> type, number of values, and their bytes with the least significant first.
        children: tag of the pointer -> the directory that it points to.
    """

    entries: Mapping[int, tuple[int, int, bytes]]
    children: Mapping[int, Directory]


def read_directories(data: bytes) -> dict[int, Directory]:
    """The EXIF and GPS directories of a TIFF file, by the tag that points to them.

    Raises:
        ValueError: it is a BigTIFF file, or a directory is damaged.
    """
    order = _ORDERS.get(data[:4])
    if order is None:
        raise ValueError("not a TIFF file with offsets of 32 bits")
    try:
        (first,) = struct.unpack_from(order + "I", data, 4)
        return dict(_read(data, order, first, 0).children)
    except struct.error:
        raise ValueError("a directory is damaged") from None


def _read(data: bytes, order: str, offset: int, depth: int) -> Directory:
    if depth == _MOST_NESTED:
        raise ValueError("directories point to one another")
    entries: dict[int, tuple[int, int, bytes]] = {}
    children: dict[int, Directory] = {}
    (count,) = struct.unpack_from(order + "H", data, offset)
    for place in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(order + "HHI", data, place)
        if kind not in _SIZES:
            continue
        size = number * _SIZES[kind]
        start = place + 8
        if size > 4 or tag in POINTERS:
            (start,) = struct.unpack_from(order + "I", data, place + 8)
        if tag in POINTERS:
            children[tag] = _read(data, order, start, depth + 1)
        elif depth:
            if start + size > len(data):
                raise ValueError("a directory is damaged")
            entries[tag] = (kind, number, _reordered(data[start : start + size], kind, order))
    return Directory(entries, children)


def _reordered(values: bytes, kind: int, order: str) -> bytes:
    word = _WORDS[kind]
    if order == "<" or word == 1:
        return values
    return b"".join(values[place : place + word][::-1] for place in range(0, len(values), word))


def copyable_directories(path: Path) -> dict[int, Directory]:
    """What `read_directories` finds in a file; nothing, with a warning, where it finds damage."""
    try:
        return read_directories(path.read_bytes())
    except ValueError as error:
        warnings.warn(f"{path}: its EXIF directories cannot be copied: {error}", stacklevel=4)
        return {}


def append_directories(path: Path, directories: Mapping[int, Directory]) -> None:
    """Append directories to a TIFF file of one picture, and a first directory that points to them.

    A file that needs offsets of 64 bits stays as it is, with a warning.

    Args:
        path: a file whose first directory has no such pointers yet.
        directories: by the tag that points to them.
    """
    with path.open("r+b") as file:
        head = file.read(8)
        size = file.seek(0, 2)
        if _ORDERS.get(head[:4]) != "<" or size >= _LARGEST:
            warnings.warn("the EXIF directories are left out: the TIFF file is too large", stacklevel=4)
            return
        file.seek(struct.unpack("<I", head[4:])[0])
        (count,) = struct.unpack("<H", file.read(2))
        rows = [file.read(12) for _ in range(count)]
        end = file.seek(0, 2)
        for tag, directory in directories.items():
            end += file.write(bytes(end % 2))
            rows.append(struct.pack("<HHII", tag, 4, 1, end))
            end += file.write(_packed(directory, end))
        end += file.write(bytes(end % 2))
        # Values of the other entries stay where they are.
        rows.sort(key=lambda row: struct.unpack("<H", row[:2]))
        file.write(struct.pack("<H", len(rows)) + b"".join(rows) + bytes(4))
        file.seek(4)
        file.write(struct.pack("<I", end))


def _packed(directory: Directory, offset: int) -> bytes:
    """A directory's bytes for a place in a file: its entries, then the values that don't fit into them."""
    tags = sorted((*directory.entries, *directory.children))
    position = offset + 2 + 12 * len(tags) + 4
    rows, values = b"", b""
    for tag in tags:
        if tag in directory.children:
            kind, number, data = 4, 1, b""
            outside = _packed(directory.children[tag], position + len(values))
        else:
            kind, number, data = directory.entries[tag]
            outside = data if len(data) > 4 else b""
        field = struct.pack("<I", position + len(values)) if outside else data.ljust(4, b"\0")
        rows += struct.pack("<HHI", tag, kind, number) + field
        values += outside + b"\0" * (len(outside) % 2)
    return struct.pack("<H", len(tags)) + rows + b"\0\0\0\0" + values
