"""Bands of degrees, and what the key decides about the mark: filters, assignments and whitening bits."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int, UInt8

from assay.errors import InputError
from assay.methods.panorama_watermark.keys import Key

PAYLOAD_FILTERS = 8


@dataclass(frozen=True)
class Band:
    """Which degrees are read for directions (the reference) and which carry the payload.

    Args:
        name: its registered name.
        reference: lowest and highest degree of the reference.
        payload: lowest and highest degree of the payload; above the reference, and at most twice its top.
        heights: image heights (pixels) that use this band when embedding: from, up to but not including.
    """

    name: str
    reference: tuple[int, int]
    payload: tuple[int, int]
    heights: tuple[int, float]

    def __post_init__(self) -> None:
        if not self.reference[1] < self.payload[0] or self.payload[1] > 2 * self.reference[1]:
            raise InputError(
                f"the payload band {self.payload} must lie above the reference band {self.reference} and end "
                f"at degree {2 * self.reference[1]} at the latest, where products of two reference fields end"
            )

    @property
    def lmax(self) -> int:
        """The highest degree that is looked at."""
        return self.payload[1]

    @property
    def dimension(self) -> int:
        """Real numbers in the payload band."""
        low, high = self.payload
        return (high + 1) ** 2 - low**2


BANDS = {
    "low": Band("low", (8, 40), (41, 80), (200, 240)),
    "mid": Band("mid", (8, 64), (65, 112), (240, 800)),
    "high": Band("high", (8, 96), (97, 160), (800, np.inf)),
}


def find_band(name: str) -> Band:
    """A registered band by its name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in BANDS:
        raise InputError(f"there is no band {name!r}; choose from {', '.join(BANDS)}")
    return BANDS[name]


def band_for_height(height: int) -> Band:
    """The band in which an image of `height` pixels is marked.

    Raises:
        InputError: the image is under 200 pixels high: its payload band would be above what it can carry.
    """
    for band in BANDS.values():
        if band.heights[0] <= height < band.heights[1]:
            return band
    raise InputError(f"the image is {height} pixels high; marking needs at least 200: mark a larger version")


@dataclass(frozen=True)
class Schedule:
    """What the key decides, for one band and number of channel bits.

    Bit j multiplies field `first[j]` and field `second[j]`, and reads the product through payload filter
    `payload_choice[j]`; its sign is turned by `whitening[j]`. All entries of filters are +1 or -1.
    They are as secret as the key, and its text form doesn't show them.
    """

    band: Band
    first_filters: Float[np.ndarray, "first reference"] = field(repr=False)
    second_filters: Float[np.ndarray, "second reference"] = field(repr=False)
    payload_filters: Float[np.ndarray, "filters payload"] = field(repr=False)
    payload_choice: Int[np.ndarray, " bits"] = field(repr=False)
    whitening: UInt8[np.ndarray, " bits"] = field(repr=False)

    @property
    def bits(self) -> int:
        """Number of channel bits."""
        return len(self.whitening)

    @property
    def first(self) -> np.ndarray:
        """The first field of every bit."""
        return np.arange(self.bits) % len(self.first_filters)

    @property
    def second(self) -> np.ndarray:
        """The second field of every bit."""
        return np.arange(self.bits) // len(self.first_filters)


@functools.lru_cache(maxsize=64)
def key_schedule(key: Key, band: Band, bits: int) -> Schedule:
    """Derive the schedule of a key: part of the format, frozen by test vectors.

    The streams are SHAKE-256 of HKDF-SHA256(secret, info = "<band name>/<purpose>"); signs are their bits,
    most significant first (1 means -1), and choices are bytes modulo 8.
    """
    fields = 16 if bits <= 200 else 32
    seconds = -(-bits // fields)
    reference = band.reference[1] - band.reference[0] + 1
    payload = band.payload[1] - band.payload[0] + 1

    def signs(purpose: str, rows: int, columns: int) -> np.ndarray:
        drawn = key.bits(f"{band.name}/{purpose}", rows * columns)
        return 1.0 - 2.0 * drawn.reshape(rows, columns)

    choices = np.frombuffer(key.stream(f"{band.name}/choice", bits), np.uint8) % PAYLOAD_FILTERS
    return Schedule(
        band=band,
        first_filters=signs("first", fields, reference),
        second_filters=signs("second", seconds, reference),
        payload_filters=signs("payload", PAYLOAD_FILTERS, payload),
        payload_choice=choices.astype(np.int64),
        whitening=key.bits(f"{band.name}/whitening", bits),
    )
