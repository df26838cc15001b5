"""Other marks to compare with: planar ones, one of second order, and one without the coupling.

A planar spread spectrum, the power spectrum and fixed directions spend a given fidelity: their strength is
bisected for every image until its WS-PSNR, after rounding and clipping, is the wanted one. The marks of
`invisible-watermark` have the strength that they ship with.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import scipy.fft
from jaxtyping import Float, UInt8

from assay.errors import InputError, MissingDependencyError
from assay.methods.panorama_watermark.harmonics import (
    band_coefficients,
    band_degrees,
    band_vector,
    image_grid,
    synthesise,
)
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.minimum_energy import solve_dual
from assay.methods.panorama_watermark.quality import ws_psnr
from assay.methods.panorama_watermark.schedule import Band

Pixels = UInt8[np.ndarray, "rows columns *channels"]
Word = UInt8[np.ndarray, " bits"]
Soft = Float[np.ndarray, " bits"]

BISECTIONS = 12
# A mark is drawn, looked at and drawn again, because rounding and clipping take a part of it.
ROUNDS = 2


class Mark(Protocol):
    """A keyed mark of some channel bits."""

    @property
    def bits(self) -> int:
        """How many channel bits it has."""
        ...

    def embed(self, image: Pixels, word: Word, fidelity: float) -> Pixels:
        """The image with a word in it, at a WS-PSNR in dB."""
        ...

    def soft_values(self, image: Pixels) -> Soft:
        """One value a bit: positive means 0."""
        ...


def strongest(draw: Callable[[float], Pixels], image: Pixels, fidelity: float) -> Pixels:
    """The strongest of a family of marked images that keeps a fidelity.

    Args:
        draw: a margin to the marked image; larger margins change it more.
        image: the original.
        fidelity: the WS-PSNR (dB) to keep.

    Raises:
        InputError: even the smallest margin costs more fidelity than that.
    """

    def kept(margin: float) -> Pixels | None:
        marked = draw(margin)
        return marked if ws_psnr(image, marked) >= fidelity else None

    lowest, highest = 2.0**-8, 2.0**-7
    best = kept(lowest)
    if best is None:
        raise InputError(
            f"no mark of this kind fits into {fidelity:.1f} dB on this image: allow less fidelity"
        )
    while highest < 2**16 and (marked := kept(highest)) is not None:
        best, lowest, highest = marked, highest, 2 * highest
    for _ in range(BISECTIONS):
        middle = (lowest + highest) / 2
        if (marked := kept(middle)) is None:
            highest = middle
        else:
            best, lowest = marked, middle
    return best


# --------------------------------------------------------------------------------------------- planar marks


# Middle frequencies of an 8 x 8 block (vertical, horizontal), which JPEG keeps fairly well.
_FREQUENCIES = ((1, 2), (2, 1), (2, 2), (0, 3), (3, 0), (1, 3))
_BLOCK = 8


@dataclass(frozen=True)
class PlanarSpectrum:
    """Keyed spread spectrum in the block cosine transform of the luma: what a good planar mark does.

    Every bit has its own coefficients, scattered over the image by the key, with keyed signs. The change is
    the smallest that brings every bit to the margin, so the host is no noise (informed embedding, as in
    Miller, Doerr and Cox, "Applying informed coding and embedding to design a robust high-capacity
    watermark", 2004, without their trellis).

    Args:
        key: decides positions and signs.
        height: of the images that it marks; the reader enlarges or reduces what it gets to it.
        bits: channel bits.
    """

    key: Key
    height: int
    bits: int = 127

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        blocks = (self.height // _BLOCK) * (2 * self.height // _BLOCK)
        each = blocks * len(_FREQUENCIES) // self.bits
        if not each:
            raise InputError(f"{self.bits} bits don't fit into an image of {self.height} rows")
        seed = np.frombuffer(self.key.derive("planar spectrum"), np.uint32)
        rng = np.random.default_rng(seed)
        places = rng.permutation(blocks * len(_FREQUENCIES))[: each * self.bits].reshape(self.bits, each)
        return places, rng.choice([-1.0, 1.0], places.shape)

    def __hash__(self) -> int:
        return hash((self.key, self.height, self.bits))

    def _blocks(self, luma: np.ndarray) -> Float[np.ndarray, "down 8 across 8"]:
        rows = self.height // _BLOCK * _BLOCK
        return luma[:rows, : 2 * rows].reshape(rows // _BLOCK, _BLOCK, 2 * rows // _BLOCK, _BLOCK)

    def _coefficients(self, luma: np.ndarray) -> np.ndarray:
        spectrum = np.asarray(scipy.fft.dctn(self._blocks(luma), axes=(1, 3), norm="ortho"))
        return np.stack([spectrum[:, u, :, v] for u, v in _FREQUENCIES], axis=-1).ravel()

    def _field(self, change: np.ndarray) -> np.ndarray:
        """The luma field of a change of the coefficients."""
        down, across = self.height // _BLOCK, 2 * self.height // _BLOCK
        spectrum = np.zeros((down, _BLOCK, across, _BLOCK))
        for index, (u, v) in enumerate(_FREQUENCIES):
            spectrum[:, u, :, v] = change.reshape(down, across, -1)[..., index]
        blocks = np.asarray(scipy.fft.idctn(spectrum, axes=(1, 3), norm="ortho"))
        out = np.zeros((self.height, 2 * self.height))
        out[: down * _BLOCK, : across * _BLOCK] = blocks.reshape(down * _BLOCK, across * _BLOCK)
        return out

    def soft_values(self, image: Pixels) -> Soft:
        """See `Mark`."""
        if len(image) != self.height:
            image = _resized(image, self.height)
        places, chips = self._places
        x = self._coefficients(pixel_scale(image).luma(image))
        return (x[places] * chips).sum(axis=1) / np.sqrt(places.shape[1])

    def embed(self, image: Pixels, word: Word, fidelity: float) -> Pixels:
        """See `Mark`.

        Raises:
            InputError: the image has another height, or no margin keeps the fidelity.
        """
        if len(image) != self.height:
            raise InputError(f"this mark is for images of {self.height} rows, got {len(image)}")
        scale, (places, chips) = pixel_scale(image), self._places
        signs = 1.0 - 2.0 * word

        def draw(margin: float) -> Pixels:
            marked, total = image, np.zeros(self.bits)
            for _ in range(ROUNDS):
                total += np.maximum(0.0, margin - signs * self.soft_values(marked))
                change = np.zeros(self._coefficients(scale.luma(image)).shape)
                change[places] = (signs * total)[:, None] * chips / np.sqrt(places.shape[1])
                marked = scale.add(image, self._field(change))
            return marked

        return strongest(draw, image, fidelity)


def _resized(image: Pixels, height: int) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((2 * height, height), Image.Resampling.LANCZOS))


@dataclass(frozen=True)
class LibraryMark:
    """A mark of `invisible-watermark`, at the strength that it ships with.

    Args:
        method: "dwtDct", "dwtDctSvd" or "rivaGan".
        bits: channel bits; RivaGAN has 32.
        height: of the marked images; the reader enlarges or reduces what it gets to it.
    """

    method: Literal["dwtDct", "dwtDctSvd", "rivaGan"]
    bits: int
    height: int

    def _library(self) -> Any:
        # No extra has it: its dependencies ask for the OpenCV of desktops.
        try:
            library: Any = importlib.import_module("imwatermark")
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"{error.name} is not installed; get it with: pip install --no-deps invisible-watermark && "
                "pip install opencv-python-headless PyWavelets onnxruntime"
            ) from error
        if self.method == "rivaGan":
            library.WatermarkEncoder.loadModel()
        return library

    def embed(self, image: Pixels, word: Word, fidelity: float = 0.0) -> Pixels:
        """See `Mark`; the fidelity is what the library makes it, and `fidelity` is not looked at.

        Raises:
            MissingDependencyError: invisible-watermark isn't installed.
        """
        encoder = self._library().WatermarkEncoder()
        encoder.set_watermark("bits", [int(bit) for bit in word])
        marked = encoder.encode(np.ascontiguousarray(image[..., ::-1]), self.method)
        return np.ascontiguousarray(marked[..., ::-1])

    def soft_values(self, image: Pixels) -> Soft:
        """See `Mark`; the library decides bits, so all values are +1 or -1.

        Raises:
            MissingDependencyError: invisible-watermark isn't installed.
        """
        if len(image) != self.height:
            image = _resized(image, self.height)
        decoder = self._library().WatermarkDecoder("bits", self.bits)
        read = decoder.decode(np.ascontiguousarray(image[..., ::-1]), self.method)
        return 1.0 - 2.0 * np.asarray(read, dtype=float)


# ---------------------------------------------------------------------------------------- marks on the sphere


@dataclass(frozen=True)
class PowerSpectrumMark:
    """Second order: a bit is which of two neighbouring degrees has more power for its size.

    The power of a degree is an invariant, like the bispectrum, but there is one number a degree, so there is
    one bit for two of them. Gain and smooth filters move neighbours alike and cancel in the comparison.

    Args:
        key: decides which sign means 0.
        band: the band whose payload degrees are paired.
    """

    key: Key
    band: Band

    @property
    def bits(self) -> int:
        """Half the payload degrees."""
        low, high = self.band.payload
        return (high - low + 1) // 2

    @property
    def _signs(self) -> np.ndarray:
        return 1.0 - 2.0 * self.key.bits("power spectrum", self.bits)

    def _payload(self, luma: np.ndarray) -> np.ndarray:
        low, high = self.band.payload
        return band_vector(luma_coefficients(luma, high), high, low, high)

    def _differences(self, vector: np.ndarray) -> np.ndarray:
        low, high = self.band.payload
        power = np.bincount(band_degrees(low, high) - low, vector**2) / (2 * np.arange(low, high + 1) + 1)
        levels = np.log(power + 1e-12)[: 2 * self.bits].reshape(-1, 2)
        return levels[:, 0] - levels[:, 1]

    def soft_values(self, image: Pixels) -> Soft:
        """See `Mark`."""
        return self._signs * self._differences(self._payload(pixel_scale(image).luma(image)))

    def embed(self, image: Pixels, word: Word, fidelity: float) -> Pixels:
        """See `Mark`.

        Raises:
            InputError: no margin keeps the fidelity.
        """
        low, high = self.band.payload
        scale, degrees = pixel_scale(image), band_degrees(low, high) - low
        signs = self._signs * (1.0 - 2.0 * word)
        original = self._payload(scale.luma(image))

        def draw(margin: float) -> Pixels:
            marked, total = image, np.zeros(self.bits)
            for _ in range(ROUNDS):
                reached = signs * self._differences(self._payload(scale.luma(marked)))
                total += np.maximum(0.0, margin - reached)
                # Half of a difference of logarithms of power is raised here and half lowered there.
                logarithms = np.zeros(high - low + 1)
                logarithms[: 2 * self.bits] = np.outer(signs * total / 4, [1, -1]).ravel()
                change = (np.exp(logarithms) - 1)[degrees] * original
                marked = scale.add(image, _drawn(change, self.band, len(image)))
            return marked

        return strongest(draw, image, fidelity)


def _drawn(change: np.ndarray, band: Band, height: int) -> Float[np.ndarray, "rows columns"]:
    """The luma field of a change of the payload band."""
    low, high = band.payload
    return synthesise(band_coefficients(change, high, low, high), image_grid(height), high)


@dataclass(frozen=True)
class FixedDirections:
    """Our mark without what makes it third-order: the same band and program, directions from the key alone.

    Args:
        key: decides the directions: all +1 and -1, of norm 1.
        band: the band whose payload degrees are marked.
        bits: channel bits.
    """

    key: Key
    band: Band
    bits: int = 127

    @functools.cached_property
    def _directions(self) -> Float[np.ndarray, "bits numbers"]:
        size = self.band.dimension
        drawn = self.key.bits("fixed directions", self.bits * size).reshape(self.bits, size)
        return (1.0 - 2.0 * drawn) / np.sqrt(size)

    def __hash__(self) -> int:
        return hash((self.key, self.band, self.bits))

    def _payload(self, luma: np.ndarray) -> np.ndarray:
        low, high = self.band.payload
        return band_vector(luma_coefficients(luma, high), high, low, high)

    def soft_values(self, image: Pixels) -> Soft:
        """See `Mark`."""
        return self._directions @ self._payload(pixel_scale(image).luma(image))

    def embed(self, image: Pixels, word: Word, fidelity: float) -> Pixels:
        """See `Mark`.

        Raises:
            InputError: no margin keeps the fidelity.
        """
        scale = pixel_scale(image)
        signed = self._directions * (1.0 - 2.0 * word)[:, None]
        gram = signed @ signed.T

        def draw(margin: float) -> Pixels:
            marked, total = image, np.zeros(self.bits)
            for _ in range(ROUNDS):
                total += solve_dual(gram, margin - signed @ self._payload(scale.luma(marked)))
                marked = scale.add(image, _drawn(total @ signed, self.band, len(image)))
            return marked

        return strongest(draw, image, fidelity)
