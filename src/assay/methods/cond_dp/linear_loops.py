"""Sums of clipped gradients of a linear model, compiled by numba; `linear.Rows` defines what they are.

Features lie column by column, and a block of rows stays in the cache between its predictions and its
gradients. They may be stored in single precision, in which double precision is exact; every operation is in
double precision. One thread. A prediction is summed in the same order wherever the row stands. The sums over
rows are reordered by the compiler to fill vector registers, so that they differ between machines by rounding,
as those of BLAS do.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numba import njit

# Rows of a block: its features stay in the second-level cache.
BLOCK = 1024
# Rows that are transposed together.
TILE = 64
# Of the 52 binary digits behind the point of a double, single precision has 23.
SINGLE_BITS = -(1 << 29)
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
REORDERED = {"reassoc", "contract"}


def columns_of(
    Z: Float[np.ndarray, "n d"], *, single: bool
) -> tuple[Float[np.ndarray, "d n"], Float[np.ndarray, " n"]]:
    """Features column by column, and the squared norms of the rows as stored.

    Args:
        Z: features, finite.
        single: store them in single precision. They are rounded towards zero, number by number, so that no
            row is longer than it was and a bound that was derived from `Z` holds. Beyond the largest number
            of single precision they are cut off, below the smallest normal one they are zero.
    """
    n, d = Z.shape
    columns = np.empty((d, n), np.float32 if single else np.float64)
    squared_norms = np.zeros(n)
    bits = np.ascontiguousarray(Z, dtype=np.float64).view(np.int64)
    mask, largest, smallest = (SINGLE_BITS, LARGEST, SMALLEST) if single else (-1, math.inf, 0.0)
    _fill_columns(bits, mask, largest, smallest, columns, squared_norms)
    return columns, squared_norms


@njit(cache=True, nogil=True)
def _fill_columns(bits, mask, largest, smallest, columns, squared_norms):
    """`bits` are those of the features; `mask` says which of them stay."""
    n, d = bits.shape
    kept = np.empty(TILE, np.int64)
    values = kept.view(np.float64)
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        norms = squared_norms[start:stop]
        for j in range(d):
            for k in range(stop - start):
                kept[k] = bits[start + k, j] & mask
            column = columns[j, start:stop]
            for k in range(stop - start):
                value = values[k]
                value = value if value < largest else largest
                value = value if value > -largest else -largest
                value = value if abs(value) >= smallest else 0.0
                column[k] = value
                norms[k] += value * value


@njit(cache=True, nogil=True, error_model="numpy", fastmath=REORDERED)
def clipped_sum(columns, t, squared_norms, parameters, learned, fit_intercept, clip, norm_offset):
    """The sum of the rows' clipped gradients, by weights, intercept and factor.

    Args:
        columns: [d, n], float32 or float64.
        t, squared_norms: [n].
        parameters: [d + 2]: weights, intercept and factor.
        learned, fit_intercept: whether the factor and the intercept are trained.
        clip: norm to which a row's gradient is clipped.
        norm_offset: added to the norms.
    """
    d, n = columns.shape
    factor = parameters[d + 1]
    gradient = np.zeros(d + 2)
    predicted, slopes = np.empty(min(n, BLOCK)), np.empty(min(n, BLOCK))
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        p, s = predicted[: stop - start], slopes[: stop - start]
        _predict(columns, start, stop, parameters, p)
        by_intercept, by_factor = _clip_slopes(
            p,
            t[start:stop],
            squared_norms[start:stop],
            (parameters[d], factor, learned, fit_intercept, clip, norm_offset),
            s,
        )
        if fit_intercept:
            gradient[d] += by_intercept
        if learned:
            gradient[d + 1] += by_factor
        for j in range(d):
            column = columns[j, start:stop]
            total = 0.0
            for k in range(len(column)):
                total += s[k] * column[k]
            gradient[j] += factor * total
    return gradient


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _predict(columns, start, stop, weights, predicted):
    d = columns.shape[0]
    predicted[:] = 0.0
    in_fours = d - d % 4
    # Four columns together read and write the predictions a quarter as often.
    for j in range(0, in_fours, 4):
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        c0, c1 = columns[j, start:stop], columns[j + 1, start:stop]
        c2, c3 = columns[j + 2, start:stop], columns[j + 3, start:stop]
        for k in range(len(predicted)):
            predicted[k] += w0 * c0[k] + w1 * c1[k] + w2 * c2[k] + w3 * c3[k]
    for j in range(in_fours, d):
        w0, c0 = weights[j], columns[j, start:stop]
        for k in range(len(predicted)):
            predicted[k] += w0 * c0[k]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=REORDERED)
def _clip_slopes(predicted, t, squared_norms, model, slopes):
    intercept, factor, learned, fit_intercept, clip, norm_offset = model
    one = 1.0 if fit_intercept else 0.0
    by_intercept, by_factor = 0.0, 0.0
    for k in range(len(predicted)):
        p = predicted[k]
        slope = 2.0 * (factor * p - t[k] + intercept)
        squared_length = squared_norms[k] + one
        if learned:
            squared_length = factor * factor * squared_norms[k] + p * p + one
        share = clip / (abs(slope) * np.sqrt(squared_length) + norm_offset)
        # What is not a number stays so, and is found by the caller.
        slope = slope if share >= 1.0 else slope * share
        slopes[k] = slope
        by_intercept += slope
        by_factor += slope * p
    return by_intercept, by_factor
