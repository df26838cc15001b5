"""From samples, histograms, densities or other quantiles to the quantiles at k / (grid_size + 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.desi.spaces.validation import as_points, refuse


def quantiles_from_samples(samples: Sequence[Any], grid_size: int = 100) -> Float[np.ndarray, "n grid_size"]:
    """Empirical quantiles of one sample a row, interpolated linearly between order statistics.

    Args:
        samples: n one-dimensional arrays; their lengths may differ.
        grid_size: number of levels k / (grid_size + 1).

    Raises:
        InputError: a sample is empty, not one-dimensional, or holds a NaN or an infinity.

    Source: Hyndman and Fan (1996), definition 7.
    """
    levels = _levels(grid_size)
    if len(samples) == 0:
        raise InputError("samples is empty; at least one sample is needed")
    rows = []
    for row, sample in enumerate(samples):
        values = np.asarray(sample, dtype=np.float64)
        if values.ndim != 1 or values.size == 0:
            raise InputError(
                f"sample {row} has shape {values.shape}; each must be one-dimensional and not empty"
            )
        if not np.isfinite(values).all():
            position = int(np.argmin(np.isfinite(values)))
            raise InputError(f"sample {row} holds {values[position]} at position {position}; drop that value")
        rows.append(np.quantile(values, levels, method="linear"))
    return np.stack(rows)


def quantiles_from_histogram(
    edges: Any, counts: Any, grid_size: int = 100
) -> Float[np.ndarray, "n grid_size"]:
    """Quantiles of histograms, with the mass spread evenly over every bin.

    Args:
        edges: increasing bin edges, shared (bins + 1,) or one row a histogram (n, bins + 1).
        counts: counts, frequencies or masses (n, bins) >= 0; any positive total.
        grid_size: number of levels k / (grid_size + 1).

    Raises:
        InputError: edges that do not increase, a negative count, a row without mass, or shapes that do not
            fit.
    """
    levels = _levels(grid_size)
    counts = as_points(counts, 1, "histogram counts")
    _refuse_negative(counts, "histogram counts")
    edges = _grid(edges, counts.shape[0], counts.shape[1] + 1, "histogram edges")
    cumulative = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    result = np.empty((len(counts), grid_size))
    for row in range(len(counts)):
        mass = levels * cumulative[row, -1]
        # The first bin whose cumulative mass reaches the level: empty bins are jumped over.
        right = np.searchsorted(cumulative[row], mass, side="left")
        share = (mass - cumulative[row, right - 1]) / counts[row, right - 1]
        result[row] = edges[row, right - 1] + share * (edges[row, right] - edges[row, right - 1])
    return np.maximum.accumulate(result, axis=1)


def quantiles_from_density(
    grid: Any, densities: Any, grid_size: int = 100
) -> Float[np.ndarray, "n grid_size"]:
    """Quantiles of densities that are linear between the points of a grid.

    The distribution function is then quadratic in every cell, and is inverted exactly.

    Args:
        grid: increasing support points, shared (points,) or one row a density (n, points).
        densities: values (n, points) >= 0; they are divided by their integral.
        grid_size: number of levels k / (grid_size + 1).

    Raises:
        InputError: a grid that does not increase, a negative density, a row without mass, or shapes that do
            not fit.
    """
    levels = _levels(grid_size)
    densities = as_points(densities, 1, "densities")
    _refuse_negative(densities, "densities")
    if densities.shape[1] < 2:
        raise InputError("densities have one grid point; at least two are needed to integrate them")
    grid = _grid(grid, densities.shape[0], densities.shape[1], "density grid")
    width = np.diff(grid, axis=1)
    cells = 0.5 * (densities[:, 1:] + densities[:, :-1]) * width
    cumulative = np.concatenate([np.zeros((len(cells), 1)), np.cumsum(cells, axis=1)], axis=1)
    result = np.empty((len(densities), grid_size))
    for row in range(len(densities)):
        mass = levels * cumulative[row, -1]
        cell = np.searchsorted(cumulative[row], mass, side="left") - 1
        rest = mass - cumulative[row, cell]
        start = densities[row, cell]
        slope = (densities[row, cell + 1] - start) / width[row, cell]
        # Root of slope x^2 / 2 + start x = rest, in the form that does not cancel for small slopes.
        root = np.sqrt(np.maximum(start**2 + 2.0 * slope * rest, 0.0))
        result[row] = grid[row, cell] + np.minimum(2.0 * rest / (start + root), width[row, cell])
    return np.maximum.accumulate(result, axis=1)


def quantiles_from_quantiles(
    levels: Any, quantiles: Any, grid_size: int = 100
) -> Float[np.ndarray, "n grid_size"]:
    """Quantiles at other levels, by linear interpolation.

    Levels outside the given ones take the first and last quantile: no tail is invented.

    Args:
        levels: increasing probabilities in [0, 1], shared (k,) or one row a distribution (n, k).
        quantiles: values (n, k).
        grid_size: number of levels k / (grid_size + 1).

    Raises:
        InputError: levels that do not increase or leave [0, 1], quantiles that decrease, or shapes that do
            not fit.
    """
    target = _levels(grid_size)
    quantiles = as_points(quantiles, 1, "quantiles")
    levels = _grid(levels, quantiles.shape[0], quantiles.shape[1], "quantile levels")
    refuse(levels[:, 0] < 0.0, levels[:, 0], "quantile levels: row {row} starts at {value:.6g}, below 0")
    refuse(levels[:, -1] > 1.0, levels[:, -1], "quantile levels: row {row} ends at {value:.6g}, above 1")
    if quantiles.shape[1] > 1:
        step = np.diff(quantiles, axis=1).min(axis=1)
        refuse(step < 0.0, -step, "quantiles: row {row} decreases by {value:.3g}; sort it")
    return np.stack([np.interp(target, at, values) for at, values in zip(levels, quantiles, strict=True)])


def _levels(grid_size: int) -> Float[np.ndarray, " grid_size"]:
    if grid_size < 1:
        raise InputError(f"grid_size is {grid_size}; it must be at least 1")
    return np.arange(1, grid_size + 1) / (grid_size + 1)


def _refuse_negative(values: np.ndarray, what: str) -> None:
    least = values.min(axis=1)
    refuse(least < 0.0, least, what + ": row {row} holds the negative value {value:.3g}")
    total = values.sum(axis=1)
    refuse(total <= 0.0, total, what + ": row {row} sums to {value:.3g}; it has no mass")


def _grid(grid: Any, n: int, size: int, what: str) -> Float[np.ndarray, "n size"]:
    grid = np.asarray(grid, dtype=np.float64)
    shared = grid.ndim == 1
    grid = as_points(grid[None] if shared else grid, 1, what)
    if grid.shape != ((1 if shared else n), size):
        raise InputError(f"{what} must have shape ({size},) or ({n}, {size}), not {grid.shape[shared:]}")
    if size > 1:
        step = np.diff(grid, axis=1).min(axis=1)
        refuse(step <= 0.0, step, what + ": row {row} does not increase (a step is {value:.3g})")
    return np.broadcast_to(grid, (n, size))
