"""The scalar field that carries the mark: luma in grey levels 0..255, and adding a change of it to pixels.

Luma is that of JPEG, so that subsampling of colour costs nothing. The same change goes into red, green and
blue, which changes luma by just that much, because its weights sum to 1.

Linear (HDR) images are looked at through a tone curve, 255 (x / (1 + x))^(1 / 2.2) with the median light at
x = 0.18, and changed by gains. Between a lamp and what is beside it light may jump by ten octaves, and every
program that turns such an image interpolates light: without a curve that levels off, the pixels between them
would drown the mark. Through the curve it outlives that, and mostly tone mapping to 8 bits, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import scipy.fft
from jaxtyping import Bool, Float, Shaped

from assay.errors import InputError
from assay.methods.panorama_watermark.harmonics import Grid, analyse, image_grid
from assay.methods.panorama_watermark.rotations import as_dtype, compilable

MIDDLE_LIGHT = 0.18
DISPLAY_GAMMA = 2.2
# Grey levels an octave that gains are computed with at least: the curve has up to 30, and almost none in deep
# shade and in lamps, where a change would otherwise be an unlimited gain.
SMALLEST_SLOPE = 16.0


@numba.njit(cache=True, nogil=True)
def _weighted_channels(pixels, scale):  # pragma: no cover - compiled
    height, width, _ = pixels.shape
    out = np.empty((height, width), dtype=np.float32)
    red, green, blue = np.float32(0.299 * scale), np.float32(0.587 * scale), np.float32(0.114 * scale)
    for i in range(height):
        for j in range(width):
            out[i, j] = red * pixels[i, j, 0] + green * pixels[i, j, 1] + blue * pixels[i, j, 2]
    return out


@dataclass(frozen=True)
class PixelScale:
    """How pixel values and grey levels 0..255 belong together.

    Args:
        dtype: of the pixels.
        units: pixel units in a grey level; 1 for 8 bits, 257 for 16 bits, 1/255 for display-referred floats.
        hdr: linear light.
        unit_light: the light that the tone curve of an HDR image takes for 1, in the image's own units.
    """

    dtype: np.dtype
    units: float
    hdr: bool = False
    unit_light: float = 1.0

    def luma(self, image: Shaped[np.ndarray, "rows columns *channels"]) -> Float[np.ndarray, "rows columns"]:
        """The luma of an image in grey levels (float32)."""
        values = self._weighted(image)
        if self.hdr:
            light = np.maximum(values, 0) / np.float32(self.unit_light)
            values = np.float32(255) * (light / (1 + light)) ** np.float32(1 / DISPLAY_GAMMA)
        return values

    def _weighted(self, image: np.ndarray) -> Float[np.ndarray, "rows columns"]:
        if image.ndim == 2 or image.shape[2] < 3:
            plane = image if image.ndim == 2 else image[..., 0]
            return plane.astype(np.float32) / np.float32(self.units)
        return _weighted_channels(compilable(image), 1.0 / self.units)

    def _levels_per_octave(self, image: np.ndarray) -> Float[np.ndarray, "rows columns"]:
        """The slope of an HDR image's tone curve at every pixel."""
        light = np.maximum(self._weighted(image), 0) / np.float32(self.unit_light)
        return self.luma(image) * np.float32(np.log(2) / DISPLAY_GAMMA) / (1 + light)

    def add(
        self,
        image: Shaped[np.ndarray, "rows columns *channels"],
        change: Float[np.ndarray, "rows columns"],
        changed: Bool[np.ndarray, "rows columns"] | None = None,
    ) -> Shaped[np.ndarray, "rows columns *channels"]:
        """The image with its luma changed by grey levels, rounded and clipped to what its type can hold.

        Args:
            image: the original; an alpha channel stays as it is.
            change: in grey levels.
            changed: pixels that may change; all by default.
        """
        if changed is not None:
            change = np.where(changed, change, 0.0)
        colours = image if image.ndim == 2 else image[..., :1] if image.shape[2] < 3 else image[..., :3]
        if self.hdr:
            change = change / np.maximum(self._levels_per_octave(image), SMALLEST_SLOPE)
        step = change if image.ndim == 2 else change[..., None]
        if self.hdr:
            # A lamp may stand at the largest half-precision number.
            new = np.minimum(colours * np.exp2(step), np.finfo(self.dtype).max)
        else:
            new = colours + step * self.units
            if not np.issubdtype(self.dtype, np.integer):
                new = np.clip(new, 0.0, 1.0)
        out = image.copy()
        target = out if image.ndim == 2 else out[..., : colours.shape[2]]
        target[...] = as_dtype(new, self.dtype)
        return out

    def clipped(self, image: Shaped[np.ndarray, "rows columns *channels"]) -> float:
        """The share of pixels that stand at an end of the range in every colour."""
        if self.hdr:
            return 0.0
        colours = image if image.ndim == 2 else image[..., :3]
        top = self.units * 255
        at_end = (colours <= 0) | (colours >= top)
        return float(np.mean(at_end if image.ndim == 2 else at_end.all(axis=2)))


def pixel_scale(image: np.ndarray, *, hdr: bool = False) -> PixelScale:
    """Check an image's shape and type, and say how its values are to be read.

    Args:
        image: (H, 2H), (H, 2H, 1), (H, 2H, 3) or (H, 2H, 4): uint8, uint16, or floats.
        hdr: floats are linear light of any size; otherwise they are display-referred, from 0 to 1.

    Raises:
        InputError: another shape or type, or values that aren't finite or out of range.
    """
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 2, 3, 4)):
        raise InputError(f"an image of shape (H, W) or (H, W, 1 to 4 channels) is needed, got {image.shape}")
    height, width = image.shape[:2]
    if width != 2 * height:
        raise InputError(
            f"a full panorama is twice as wide as high, this image is {width} x {height}: give the place of "
            "a partial one with --cropped-area, or GPano metadata"
        )
    if image.dtype == np.uint8:
        return PixelScale(image.dtype, 1.0)
    if image.dtype == np.uint16:
        return PixelScale(image.dtype, 257.0)
    if not np.issubdtype(image.dtype, np.floating):
        raise InputError(f"pixels of type {image.dtype} are not supported: use uint8, uint16 or floats")
    bad = int(np.count_nonzero(~np.isfinite(image)))
    if bad:
        raise InputError(f"{bad} values of the image are not finite: repair them first")
    if not hdr:
        if image.min() < 0 or image.max() > 1:
            raise InputError(
                f"floating-point pixels must be from 0 to 1, these go from {image.min():.3g} to "
                f"{image.max():.3g}: pass hdr=True for linear light"
            )
        return PixelScale(image.dtype, 1 / 255)
    median = _median_light(PixelScale(image.dtype, 1.0).luma(image))
    if median <= 0:
        raise InputError("the image is black, or at least half of it")
    return PixelScale(image.dtype, 1.0, True, median / MIDDLE_LIGHT)


def _median_light(light: Float[np.ndarray, "rows columns"]) -> float:
    """The light that half of the sphere exceeds: no rotation changes it, and no lamp."""
    height, width = light.shape
    weights = np.repeat(np.sin((np.arange(height) + 0.5) * np.pi / height), width)
    order = np.argsort(light, axis=None)
    below = np.cumsum(weights[order])
    return float(light.ravel()[order[np.searchsorted(below, below[-1] / 2)]])


def field_for_degree(
    luma: Float[np.ndarray, "rows columns"], lmax: int
) -> tuple[Float[np.ndarray, "finer_rows columns"], Grid]:
    """The luma on a grid whose quadrature is exact to degree `lmax`: with more rows where it has too few.

    A meridian goes on beyond the pole as the opposite one, so that colatitude is periodic, and rows between
    rows follow by trigonometric interpolation: exact for fields of a degree under the number of rows.
    """
    height, width = luma.shape
    if height > 2 * lmax:
        return luma, image_grid(height)
    rows = 2 * lmax + 2
    around = np.concatenate([luma, np.roll(luma[::-1], width // 2, axis=1)], axis=0)
    spectrum = np.asarray(scipy.fft.rfft(around.astype(float), axis=0))[:height]
    frequencies = np.arange(height)[:, None]
    shift = np.exp(1j * frequencies * (np.pi / 2) * (1 / rows - 1 / height))
    finer = np.asarray(scipy.fft.irfft(spectrum * shift, n=2 * rows, axis=0))[:rows]
    return finer * (rows / height), Grid("fejer", rows, width)


def luma_coefficients(luma: Float[np.ndarray, "rows columns"], lmax: int) -> np.ndarray:
    """Spherical-harmonic coefficients of a luma field to degree `lmax`."""
    field, grid = field_for_degree(luma, lmax)
    return analyse(field, grid, lmax)
