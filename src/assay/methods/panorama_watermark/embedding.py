"""Closed-form embedding: the weakest change of the payload band that every bit can be read from.

The change is computed in coefficients, drawn on the pixels, rounded and clipped, and the result is looked at
again, because rounding and clipping move the image, and with it its carriers, a little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from assay.errors import InputError
from assay.methods.panorama_watermark.carriers import carrier_grid, carriers, check_carriers
from assay.methods.panorama_watermark.harmonics import (
    Grid,
    band_coefficients,
    band_vector,
    image_grid,
    synthesise,
)
from assay.methods.panorama_watermark.luma import PixelScale, luma_coefficients
from assay.methods.panorama_watermark.minimum_energy import energy, solve_dual
from assay.methods.panorama_watermark.missing import fill_missing
from assay.methods.panorama_watermark.schedule import Schedule

SMALLEST_MARGIN = 0.15
# Fidelity gives way for this much: messages then outlive JPEG of quality 30 at 512 x 256 pixels.
COMFORTABLE_MARGIN = 0.4
REACHED = 0.9
MOST_ITERATIONS = 6
BISECTIONS = 10


@dataclass(frozen=True)
class Strength:
    """How strongly to mark: a fidelity to use up (WS-PSNR in dB), or a margin of the soft values.

    Args:
        psnr: the fidelity to spend, as WS-PSNR in dB; used when no margin is given.
        min_psnr: where `psnr` leaves a margin under 0.4, fidelity gives way down to this.
        margin: every bit's soft value reaches it (grey levels times the square root of a steradian).
        droppable: where even that is too little, so many of the costliest bits may be left wrong, for the
            error correction to repair.
        allow_weak: mark with a smaller margin than 0.15, or than was asked for, instead of refusing.
    """

    psnr: float = 42.0
    min_psnr: float = 39.0
    margin: float | None = None
    droppable: int = 0
    allow_weak: bool = False


@dataclass(frozen=True)
class Marked:
    """The marked pixels and how the marking went.

    Args:
        pixels: as the original's.
        margin: the margin that was aimed at.
        min_margin: the smallest soft value that was reached, of the bits that were not given up.
        dropped: bits that were given up.
        iterations: times the change was computed and drawn.
    """

    pixels: np.ndarray
    margin: float
    min_margin: float
    dropped: int
    iterations: int


@dataclass
class _Problem:
    """One iteration's quadratic programme."""

    vectors: Float[np.ndarray, "bits numbers"]
    gram: Float[np.ndarray, "bits bits"]
    soft: Float[np.ndarray, " bits"]
    active: Bool[np.ndarray, " bits"]

    def solve(self, margin: float, start: np.ndarray | None = None) -> np.ndarray:
        return solve_dual(self.gram, margin - self.soft, start=start, active=self.active)


def texture_mask(luma: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
    """Where a change is seen less: the local deviation of luma in 7 x 7 pixels, floored and at mean 1."""
    from scipy.ndimage import uniform_filter

    options: dict[str, Any] = {"mode": ("nearest", "wrap")}
    mean = uniform_filter(luma, 7, **options)
    variance = uniform_filter(luma * luma, 7, **options) - mean**2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    weights = np.sin((np.arange(len(luma)) + 0.5) * np.pi / len(luma))[:, None]
    deviation /= (deviation * weights).sum() / (weights.sum() * luma.shape[1]) + 1e-9
    mask = np.clip(deviation, 0.2, 3.0)
    return mask / ((mask * weights).sum() / (weights.sum() * luma.shape[1]))


def _sample_on(grid: Grid, field: np.ndarray) -> np.ndarray:
    """An equirectangular field at a grid's points, bilinear."""
    from scipy.ndimage import map_coordinates

    height, width = field.shape
    rows = grid.colatitudes * height / np.pi - 0.5
    longitudes = np.arange(grid.columns) * 2 * np.pi / grid.columns + grid.first_longitude
    columns = longitudes * width / (2 * np.pi) - 0.5 + 1
    wrapped = np.concatenate([field[:, -1:], field, field[:, :1]], axis=1)
    places = np.meshgrid(rows, columns, indexing="ij")
    return map_coordinates(wrapped, places, order=1, mode="nearest")


def _masked_gram(vectors: np.ndarray, schedule: Schedule, mask: np.ndarray) -> np.ndarray:
    """Inner products <w_i, M w_j> by quadrature."""
    grid = carrier_grid(schedule.band)
    low, high = schedule.band.payload
    fields = synthesise(band_coefficients(vectors, high, low, high), grid, high).reshape(len(vectors), -1)
    weights = (_sample_on(grid, mask) * grid.weights[:, None]).ravel()
    return (fields * weights) @ fields.T


def embed_bits(
    image: np.ndarray,
    scale: PixelScale,
    schedule: Schedule,
    bits: UInt8[np.ndarray, " bits"],
    strength: Strength,
    *,
    valid: Bool[np.ndarray, "rows columns"] | None = None,
    texture: bool = False,
) -> Marked:
    """Write channel bits into an image.

    Args:
        image: pixels that `luma.pixel_scale` accepts.
        scale: what it returned.
        schedule: the key's, for the band to mark in.
        bits: the channel bits.
        strength: how strongly.
        valid: pixels that show something; the others are filled in before looking, and left alone.
        texture: weight the change by local texture.

    Raises:
        InputError: the image has no directions to offer, the strength is too small for the bits, or the image
            saturates before the margin is reached.
    """
    band = schedule.band
    low, high = band.payload
    signs = 1.0 - 2.0 * (np.asarray(bits) ^ schedule.whitening)
    original = scale.luma(image)
    mask = texture_mask(original) if texture else None
    marked, current = image, fill_missing(original, valid)
    total = np.zeros(band.dimension)
    best: tuple[float, np.ndarray, int] = (-math.inf, image, 0)
    margin = strength.margin
    active = np.ones(schedule.bits, bool)
    for iteration in range(MOST_ITERATIONS + 1):
        coefficients = luma_coefficients(current, high)
        vectors = carriers(coefficients, schedule) * signs[:, None]
        soft = vectors @ band_vector(coefficients, high, low, high)
        if iteration:
            reached = float(soft[active].min())
            if reached > best[0]:
                best = (reached, marked, iteration)
            if reached >= REACHED * float(margin or 0) and iteration >= (4 if texture else 2):
                break
            if iteration == MOST_ITERATIONS:
                break
        gram = vectors @ vectors.T if mask is None else _masked_gram(vectors, schedule, mask)
        problem = _Problem(vectors, gram, soft, active)
        if not iteration:
            check_carriers(vectors @ vectors.T)
            margin = _choose_margin(problem, strength)
        assert margin is not None
        total += problem.solve(margin) @ vectors
        change = synthesise(band_coefficients(total, high, low, high), image_grid(image.shape[0]), high)
        marked = scale.add(image, change if mask is None else change * mask, valid)
        current = fill_missing(scale.luma(marked), valid)
    assert margin is not None
    reached, marked, iterations = best
    if reached < REACHED * margin and not strength.allow_weak:
        raise InputError(
            f"image saturates: {scale.clipped(image):.0%} of its pixels stand at an end of the range and the "
            f"margin reaches {reached:.2f} of {margin:.2f}: pass --margin {max(reached, 0) * 0.9:.2f} "
            "or less, or --allow-weak"
        )
    return Marked(marked, margin, reached, int(np.count_nonzero(~active)), iterations)


def _budget(psnr: float) -> float:
    """The energy ||d||^2 that a WS-PSNR allows.

    The mean square over the sphere is ||d||^2 / 4 pi, and rounding to whole levels adds 1/12 to it.
    """
    return 4 * math.pi * max(255.0**2 * 10 ** (-psnr / 10) - 1 / 12, 1e-6)


def _choose_margin(problem: _Problem, strength: Strength) -> float:
    """The margin to aim at; gives up the costliest bits (in `problem.active`) where the budget needs it."""
    if strength.margin is not None:
        return strength.margin
    margin = _largest_margin(problem, _budget(strength.psnr))
    if margin >= COMFORTABLE_MARGIN:
        return margin
    budget = _budget(min(strength.psnr, strength.min_psnr))
    margin = min(COMFORTABLE_MARGIN, _largest_margin(problem, budget))
    if margin >= SMALLEST_MARGIN:
        return margin
    for dropped in range(strength.droppable + 1):
        multipliers = problem.solve(SMALLEST_MARGIN)
        if energy(problem.gram, multipliers) <= budget:
            return SMALLEST_MARGIN
        if dropped < strength.droppable:
            problem.active[np.argmax(multipliers)] = False
    if strength.allow_weak and (weak := _largest_margin(problem, budget)) > 0:
        return weak
    spent = energy(problem.gram, problem.solve(SMALLEST_MARGIN)) / (4 * math.pi) + 1 / 12
    feasible = math.floor(100 * math.log10(255.0**2 / spent)) / 10
    raise InputError(
        f"{len(problem.soft)} bits cannot be marked at {strength.min_psnr:.1f} dB with the smallest margin, "
        f"{SMALLEST_MARGIN}: pass --min-psnr {feasible:.1f} or less, a shorter code"
        + (" (the mark would have no margin at all)" if strength.allow_weak else ", or --allow-weak")
    )


def _largest_margin(problem: _Problem, budget: float) -> float:
    """The largest margin whose smallest change stays within a budget of energy, by bisection."""
    lowest, highest = 0.0, 0.5
    start = np.zeros(len(problem.soft))
    while highest < 64:
        start = problem.solve(highest, start)
        if energy(problem.gram, start) > budget:
            break
        lowest, highest = highest, 2 * highest
    for _ in range(BISECTIONS):
        middle = (lowest + highest) / 2
        start = problem.solve(middle, start)
        if energy(problem.gram, start) > budget:
            highest = middle
        else:
            lowest = middle
    return lowest
