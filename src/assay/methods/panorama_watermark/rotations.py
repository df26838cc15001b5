"""Turning a panorama: rotation matrices, and resampling an equirectangular image under a rotation.

Directions are x = (sin t cos p, sin t sin p, cos t) for colatitude t and longitude p. A rotated panorama
shows f(R^-1 x) at x, as everywhere in this method.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from jaxtyping import Float

from assay.errors import InputError


def rotation_matrix(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Float[np.ndarray, "3 3"]:
    """The rotation by roll about x, then pitch about y, then yaw about the vertical z; all in degrees."""
    from scipy.spatial.transform import Rotation

    return Rotation.from_euler("ZYX", [yaw, pitch, roll], degrees=True).as_matrix()


def random_rotation(seed: int | np.random.Generator) -> Float[np.ndarray, "3 3"]:
    """A rotation that is uniform over all of SO(3): a normalised Gaussian quaternion."""
    from scipy.spatial.transform import Rotation

    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    return Rotation.from_quat(rng.normal(size=4)).as_matrix()


@numba.njit(cache=True, nogil=True)
def _keys_weights(t, weights):  # pragma: no cover - compiled
    """Keys' cubic convolution (a = -1/2) at distances 1 + t, t, 1 - t, 2 - t."""
    weights[0] = ((-0.5 * t + 1.0) * t - 0.5) * t
    weights[1] = (1.5 * t - 2.5) * t * t + 1.0
    weights[2] = ((-1.5 * t + 2.0) * t + 0.5) * t
    weights[3] = (0.5 * t - 0.5) * t * t


@numba.njit(cache=True, nogil=True)
def _resample(image, backward, cubic):  # pragma: no cover - compiled
    height, width, channels = image.shape
    out = np.empty(image.shape, dtype=np.float32)
    taps = 4 if cubic else 2
    before = 1 if cubic else 0
    vertical = np.empty(4)
    horizontal = np.empty(4)
    longitudes = (np.arange(width) + 0.5) * (2 * np.pi / width)
    cosines, sines = np.cos(longitudes), np.sin(longitudes)
    for i in range(height):
        colatitude = (i + 0.5) * np.pi / height
        z, radius = np.cos(colatitude), np.sin(colatitude)
        for j in range(width):
            x, y = radius * cosines[j], radius * sines[j]
            u = backward[0, 0] * x + backward[0, 1] * y + backward[0, 2] * z
            v = backward[1, 0] * x + backward[1, 1] * y + backward[1, 2] * z
            w = backward[2, 0] * x + backward[2, 1] * y + backward[2, 2] * z
            row = np.arctan2(np.sqrt(u * u + v * v), w) * height / np.pi - 0.5
            column = (np.arctan2(v, u) % (2 * np.pi)) * width / (2 * np.pi) - 0.5
            top, left = int(np.floor(row)), int(np.floor(column))
            if cubic:
                _keys_weights(row - top, vertical)
                _keys_weights(column - left, horizontal)
            else:
                vertical[0], vertical[1] = 1.0 - (row - top), row - top
                horizontal[0], horizontal[1] = 1.0 - (column - left), column - left
            for c in range(channels):
                out[i, j, c] = 0.0
            for a in range(taps):
                source = top - before + a
                shift = 0
                # Beyond a pole the image goes on half a turn away.
                if source < 0:
                    source, shift = -1 - source, width // 2
                elif source >= height:
                    source, shift = 2 * height - 1 - source, width // 2
                for b in range(taps):
                    place = (left - before + b + shift) % width
                    weight = vertical[a] * horizontal[b]
                    for c in range(channels):
                        out[i, j, c] += weight * image[source, place, c]
    return out


def as_dtype(values: Float[np.ndarray, "*shape"], dtype: Any) -> np.ndarray:
    """Rounded and clipped to an integer type, or simply cast to a floating one."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return values.astype(dtype)


def compilable(values: np.ndarray) -> np.ndarray:
    """Contiguous, and in a type that compiled kernels take: they don't know half-precision numbers."""
    return np.ascontiguousarray(values, dtype=np.float32 if values.dtype == np.float16 else values.dtype)


def rotate_panorama(image: np.ndarray, rotation: Float[np.ndarray, "3 3"], *, order: int = 1) -> np.ndarray:
    """Resample an equirectangular image under a rotation of the sphere.

    Args:
        image: (H, 2H) or (H, 2H, channels), of any real type; the result has the same type.
        rotation: R; what was at x is afterwards at R x.
        order: 1 for bilinear, 3 for bicubic (Keys' cubic convolution).

    Raises:
        InputError: the image isn't twice as wide as high, or the order is another.
    """
    if order not in (1, 3):
        raise InputError(f"the order of interpolation is 1 (bilinear) or 3 (bicubic), got {order}")
    if image.ndim not in (2, 3) or image.shape[1] != 2 * image.shape[0]:
        raise InputError(f"a panorama of H x 2H pixels is needed, got {image.shape[1]} x {image.shape[0]}")
    planes = compilable(image.reshape(*image.shape[:2], -1))
    backward = np.ascontiguousarray(np.asarray(rotation, dtype=float).T)
    return as_dtype(_resample(planes, backward, order == 3), image.dtype).reshape(image.shape)
