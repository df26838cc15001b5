"""How far a marked panorama is from its original: PSNR, WS-PSNR and SSIM."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Shaped


def _decibels(mean_square: float, peak: float) -> float:
    return math.inf if mean_square == 0 else 10 * math.log10(peak**2 / mean_square)


def psnr(
    first: Shaped[np.ndarray, "rows columns *channels"],
    second: Shaped[np.ndarray, "rows columns *channels"],
    *,
    peak: float = 255.0,
) -> float:
    """Peak signal-to-noise ratio in dB, every pixel alike."""
    return _decibels(float(np.mean((first.astype(np.float32) - second) ** 2, dtype=float)), peak)


def ws_psnr(
    first: Shaped[np.ndarray, "rows columns *channels"],
    second: Shaped[np.ndarray, "rows columns *channels"],
    *,
    peak: float = 255.0,
) -> float:
    """PSNR in dB with every row weighted by the part of the sphere that it covers (Sun, Lu and Yu, 2017)."""
    squares = (first.astype(np.float32) - second) ** 2
    rows = squares.reshape(len(squares), -1).mean(axis=1, dtype=float)
    weights = np.sin((np.arange(len(rows)) + 0.5) * np.pi / len(rows))
    return _decibels(float(rows @ weights / weights.sum()), peak)


def ssim(
    first: Shaped[np.ndarray, "rows columns"],
    second: Shaped[np.ndarray, "rows columns"],
    *,
    peak: float = 255.0,
) -> float:
    """Structural similarity of two grey images (Wang et al., 2004): Gaussian windows, sigma 1.5 pixels."""
    from scipy.ndimage import gaussian_filter

    def smooth(values: np.ndarray) -> np.ndarray:
        options: dict[str, Any] = {"truncate": 3.5, "mode": ("nearest", "wrap")}
        return gaussian_filter(values, 1.5, **options)

    a, b = first.astype(np.float32), second.astype(np.float32)
    mean_a, mean_b = smooth(a), smooth(b)
    variance_a, variance_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similarity = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    similarity /= (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    return float(similarity.mean(dtype=float))
