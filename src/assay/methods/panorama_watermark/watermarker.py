"""The watermark as its users see it: a key that embeds payloads into panoramas and finds them again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from assay.errors import InputError
from assay.methods.panorama_watermark.bch import find_code
from assay.methods.panorama_watermark.carriers import soft_values
from assay.methods.panorama_watermark.embedding import Marked, Strength, embed_bits
from assay.methods.panorama_watermark.frames import (
    as_payload,
    blind_false_positive,
    check_length,
    frame_bits,
    match_p_value,
    read_frame,
)
from assay.methods.panorama_watermark.harmonics import degrees_and_orders
from assay.methods.panorama_watermark.keys import Key, as_key
from assay.methods.panorama_watermark.luma import PixelScale, luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.missing import (
    check_coverage,
    constant_pole_patches,
    covered_sphere,
    fill_missing,
    same_mask,
)
from assay.methods.panorama_watermark.quality import psnr, ssim, ws_psnr
from assay.methods.panorama_watermark.schedule import BANDS, Band, band_for_height, find_band, key_schedule

if TYPE_CHECKING:
    from PIL.Image import Image

    from assay.methods.panorama_watermark.learned import LearnedEngine

KNOWN_PAYLOAD_LEVEL = 1e-6


@dataclass(frozen=True)
class EmbedResult:
    """A marked image.

    Args:
        image: the marked pixels, of the original's shape and type.
        psnr: against the original, in dB; infinite where nothing changed.
        ws_psnr: the same, by solid angle.
        ssim: structural similarity of the luma.
        min_margin: the smallest soft value of a bit that was not given up.
        dropped: bits that were given up, for the error correction to repair.
        iterations: times the mark was drawn and looked at again.
        band: the band that it was written in.
    """

    image: Shaped[np.ndarray, "rows columns *channels"]
    psnr: float
    ws_psnr: float
    ssim: float
    min_margin: float
    dropped: int
    iterations: int
    band: str


@dataclass(frozen=True)
class Detection:
    """What was found in an image.

    Args:
        found: a payload that passes its check was read, or the payload that was asked for is there.
        payload: the payload that was read; None where none passes its check.
        p_value: with a payload asked for, the probability that chance alone matches so many of its bits in
            any band; else `fpr` where a payload was read, and 1 where none was.
        fpr: the probability that this test finds something in an image that was not marked with the key.
        bit_errors_corrected: channel bits that were wrong, where a payload was read.
        soft: soft channel values of the band, whitened; positive means 0.
        band: the band in which it was found, or in which most bits matched or were surest.
        bands: p-value of every band that was tried.
        quality: numbers about the image: mean size of the soft values, share of the sphere that is shown.
    """

    found: bool
    payload: bytes | None
    p_value: float
    fpr: float
    bit_errors_corrected: int
    soft: Float[np.ndarray, " bits"]
    band: str
    bands: Mapping[str, float] = field(default_factory=dict)
    quality: Mapping[str, float] = field(default_factory=dict)


class Watermarker:
    """Embeds payloads that no rotation of the sphere removes, and detects them without the original.

    Args:
        key: a `Key`, at least 16 bytes, or a passphrase (text, stretched by scrypt).
        engine: "closed_form", or a trained `LearnedEngine`.
        band: "auto" (by the image's height), or a registered band: "low", "mid" or "high".
        code: the error-correcting code; it decides how long a payload may be.
        psnr: fidelity to spend, as WS-PSNR in dB.
        min_psnr: fidelity gives way down to this where `psnr` would leave the mark too weak.
        margin: a margin to reach instead of a fidelity to spend.
        mask: "texture" puts more of the change where the image is busy.
        allow_weak: mark images that don't reach the margin, instead of refusing them.

    Raises:
        InputError: a parameter is out of range or unknown.
    """

    def __init__(
        self,
        key: Key | bytes | str,
        *,
        engine: Literal["closed_form"] | LearnedEngine = "closed_form",
        band: str = "auto",
        code: str = "bch127_64",
        psnr: float = 42.0,
        min_psnr: float = 39.0,
        margin: float | None = None,
        mask: Literal["texture"] | None = None,
        allow_weak: bool = False,
    ):
        self.key = as_key(key)
        self.code = find_code(code)
        if isinstance(engine, str) and engine != "closed_form":
            raise InputError(f"the engine is 'closed_form' or a LearnedEngine, not {engine!r}")
        self.band = None if band == "auto" else find_band(band)
        for name, value in (("psnr", psnr), ("min_psnr", min_psnr)):
            if not 20 <= value <= 60:
                raise InputError(f"{name} must be from 20 to 60 dB, got {value}")
        if margin is not None and not 0 < margin <= 100:
            raise InputError(f"the margin must be over 0 and at most 100 grey levels, got {margin}")
        if mask not in (None, "texture"):
            raise InputError(f"the mask is 'texture' or None, not {mask!r}")
        self.engine = engine
        self.mask = mask
        self.strength = Strength(psnr, min_psnr, margin, self.code.t // 2, allow_weak)
        if not isinstance(engine, str):
            engine.check_compatible(self.code, self.band, self.key)
            self.band = engine.band

    def __repr__(self) -> str:
        return f"Watermarker(key={self.key.id}, code={self.code.name!r})"

    def embed(
        self,
        image: np.ndarray | Image | Path,
        payload: bytes | str | int,
        *,
        valid_mask: Bool[np.ndarray, "rows columns"] | None = None,
        hdr: bool = False,
    ) -> EmbedResult:
        """Write a payload into a panorama.

        Args:
            image: pixels (H, 2H[, channels]): uint8, uint16 or floats; a Pillow image; or a file. An alpha
                channel stays as it is.
            payload: bytes, text (UTF-8) or a whole number (its big-endian bytes).
            valid_mask: pixels that show something. By default a patch of one colour at a pole is left out.
            hdr: floats are linear light; files know it themselves.

        Raises:
            InputError: the payload is too long for the code, or the image cannot carry it; the message says
                why and what helps.
        """
        pixels, valid, scale = self._open(image, valid_mask, hdr)
        automatic = valid_mask is None and (valid is None or same_mask(valid, constant_pole_patches(pixels)))
        data = as_payload(payload)
        check_length(data, self.code)
        if valid is not None:
            check_coverage(valid)
        band = self.band or band_for_height(len(pixels))
        if len(pixels) < 200:
            band_for_height(len(pixels))
        present = self._detect(pixels, valid, scale, None)
        if present.found:
            warnings.warn(
                f"the image already carries a payload of key {self.key.id}: it is overwritten", stacklevel=2
            )
        schedule = key_schedule(self.key, band, self.code.n)
        bits = frame_bits(data, self.key, self.code)
        if isinstance(self.engine, str):
            marked = embed_bits(
                pixels, scale, schedule, bits, self.strength, valid=valid, texture=self.mask is not None
            )
        else:
            marked = self.engine.embed_bits(pixels, scale, schedule, bits, self.strength, valid=valid)
        if automatic:
            self._check_patches(marked.pixels, valid, scale, data)
        return self._result(pixels, marked, scale, band)

    def _check_patches(
        self, marked: np.ndarray, valid: np.ndarray | None, scale: PixelScale, payload: bytes
    ) -> None:
        """Refuse a marked image in which detection leaves out another patch, and therefore finds nothing.

        That happens where a clipped sky is too large to be taken for a patch, and marking breaks it up.

        Raises:
            InputError: that is so.
        """
        seen = constant_pole_patches(marked)
        if same_mask(seen, valid) or self._detect(marked, seen, scale, None).payload == payload:
            return
        raise InputError(
            "too much of the image is of one colour around a pole (a clipped sky, or a cover) for the mark "
            "to be found again: mark a version that shows something there"
        )

    @staticmethod
    def _result(pixels: np.ndarray, marked: Marked, scale: PixelScale, band: Band) -> EmbedResult:
        if scale.hdr:
            before, after, peak = scale.luma(pixels), scale.luma(marked.pixels), 255.0
        else:
            alpha = pixels.ndim == 3 and pixels.shape[2] in (2, 4)
            colours = (..., slice(0, -1)) if alpha else ...
            before, after, peak = pixels[colours], marked.pixels[colours], 255.0 * scale.units
        return EmbedResult(
            image=marked.pixels,
            psnr=psnr(before, after, peak=peak),
            ws_psnr=ws_psnr(before, after, peak=peak),
            ssim=ssim(scale.luma(pixels), scale.luma(marked.pixels)),
            min_margin=marked.min_margin,
            dropped=marked.dropped,
            iterations=marked.iterations,
            band=band.name,
        )

    def detect(
        self,
        image: np.ndarray | Image | Path,
        *,
        payload: bytes | str | int | None = None,
        valid_mask: Bool[np.ndarray, "rows columns"] | None = None,
        hdr: bool = False,
    ) -> Detection:
        """Look for a payload of this key.

        Args:
            image: as in `embed`; any height.
            payload: test for this payload, which needs fewer bits to be right than reading an unknown one.
            valid_mask: as in `embed`.
            hdr: as in `embed`.

        Raises:
            InputError: the image isn't a full panorama, or its pixels are not usable.
        """
        pixels, valid, scale = self._open(image, valid_mask, hdr)
        return self._detect(pixels, valid, scale, None if payload is None else as_payload(payload))

    def verify(self, image: np.ndarray | Image | Path, payload: bytes | str | int, **options: Any) -> float:
        """The p-value of the test for a known payload: exact for images that were made without the key."""
        return self.detect(image, payload=payload, **options).p_value

    def soft_bits(
        self, image: np.ndarray, band: str, *, valid_mask: np.ndarray | None = None, hdr: bool = False
    ) -> Float[np.ndarray, " bits"]:
        """Soft channel values of one band, whitened: positive means 0. For measuring bit accuracy."""
        pixels, valid, scale = self._open(image, valid_mask, hdr)
        return self._soft(self._coefficients(pixels, valid, scale), find_band(band))

    def channel_bits(self, payload: bytes | str | int) -> np.ndarray:
        """The channel bits that a payload is written as."""
        return frame_bits(as_payload(payload), self.key, self.code)

    def _bands(self) -> list[Band]:
        return [self.band] if self.band else list(BANDS.values())

    def _open(
        self, image: np.ndarray | Image | Path, valid: np.ndarray | None, hdr: bool
    ) -> tuple[np.ndarray, np.ndarray | None, PixelScale]:
        from assay.methods.panorama_watermark.images import as_pixels

        pixels, shown, hdr = as_pixels(image, hdr)
        scale = pixel_scale(pixels, hdr=hdr)
        valid = shown if valid is None else valid
        if valid is None:
            valid = constant_pole_patches(pixels)
        if valid is not None:
            valid = np.asarray(valid, dtype=bool)
            if valid.shape != pixels.shape[:2]:
                raise InputError(f"the mask has shape {valid.shape}, the image {pixels.shape[:2]}")
            if not valid.any():
                raise InputError("no pixel of the image is valid")
        return pixels, valid, scale

    def _coefficients(self, pixels: np.ndarray, valid: np.ndarray | None, scale: PixelScale) -> np.ndarray:
        top = max(band.lmax for band in self._bands())
        return luma_coefficients(fill_missing(scale.luma(pixels), valid), top)

    def _soft(self, coefficients: np.ndarray, band: Band) -> np.ndarray:
        top = max(other.lmax for other in self._bands())
        degrees, _ = degrees_and_orders(top)
        schedule = key_schedule(self.key, band, self.code.n)
        part = coefficients[degrees <= band.lmax]
        read = soft_values if isinstance(self.engine, str) else self.engine.soft_values
        return read(part, schedule) * (1.0 - 2.0 * schedule.whitening)

    def _detect(
        self, pixels: np.ndarray, valid: np.ndarray | None, scale: PixelScale, payload: bytes | None
    ) -> Detection:
        bands = self._bands()
        blind = blind_false_positive(self.code, len(bands))
        shown = 1.0 if valid is None else covered_sphere(valid)
        try:
            coefficients = self._coefficients(pixels, valid, scale)
            soft = {band.name: self._soft(coefficients, band) for band in bands}
        except InputError:
            # Nothing to read directions from, so there is no mark either.
            nothing = {band.name: 1.0 for band in bands}
            empty = np.zeros(self.code.n)
            return Detection(False, None, 1.0, blind, 0, empty, bands[0].name, nothing, {"shown": shown})
        read = {name: read_frame(values, self.key, self.code) for name, values in soft.items()}
        wanted = None if payload is None else frame_bits(payload, self.key, self.code)
        p_values = {
            name: blind if decoded and wanted is None else self._p_value(soft[name], wanted, len(bands))
            for name, decoded in read.items()
        }
        confident = {name: float(np.abs(values).mean()) for name, values in soft.items()}
        best = min(p_values, key=lambda name: (read[name] is None, p_values[name], -confident[name]))
        if payload is not None:
            best = min(p_values, key=lambda name: p_values[name])
        decoded, p_value = read[best], p_values[best]
        return Detection(
            found=decoded is not None if payload is None else p_value <= KNOWN_PAYLOAD_LEVEL,
            payload=decoded.payload if decoded else None,
            p_value=p_value,
            fpr=blind if payload is None else KNOWN_PAYLOAD_LEVEL,
            bit_errors_corrected=decoded.errors if decoded else 0,
            soft=soft[best].astype(np.float32),
            band=best,
            bands=p_values,
            quality={"mean_soft": confident[best], "shown": shown, "height": float(len(pixels))},
        )

    def _p_value(self, soft: np.ndarray, wanted: np.ndarray | None, tries: int) -> float:
        if wanted is None:
            return 1.0
        return match_p_value(int(np.count_nonzero((soft < 0) == wanted)), self.code.n, tries)


def finite(value: float) -> float | str:
    """A number for strict JSON: infinity (nothing changed) as text."""
    return value if math.isfinite(value) else "inf"
