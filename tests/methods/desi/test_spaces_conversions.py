"""Quantiles from samples, histograms, densities and other quantiles, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm

from assay.errors import InputError
from assay.methods.desi.spaces import (
    quantiles_from_density,
    quantiles_from_histogram,
    quantiles_from_quantiles,
    quantiles_from_samples,
)


def levels(grid_size):
    return np.arange(1, grid_size + 1) / (grid_size + 1)


def test_samples_of_different_lengths():
    quantiles = quantiles_from_samples([[3.0, 1.0, 2.0], [5.0]], grid_size=3)
    np.testing.assert_allclose(quantiles, [[1.5, 2.0, 2.5], [5.0, 5.0, 5.0]])


def test_samples_converge_to_the_quantile_function():
    sample = np.random.default_rng(0).normal(size=200_000)
    np.testing.assert_allclose(quantiles_from_samples([sample], 9)[0], ndtri(levels(9)), atol=0.02)


def test_histogram_spreads_mass_over_bins_and_jumps_empty_ones():
    quantiles = quantiles_from_histogram([0, 1, 2, 4], [[1, 0, 1], [0, 2, 0]], grid_size=3)
    np.testing.assert_allclose(quantiles, [[0.5, 1.0, 3.0], [1.25, 1.5, 1.75]])


def test_histogram_with_edges_of_its_own():
    edges = np.array([[0.0, 1.0, 2.0], [10.0, 20.0, 40.0]])
    np.testing.assert_allclose(quantiles_from_histogram(edges, [[3, 1], [1, 1]], 1), [[2 / 3], [20.0]])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_histogram_quantiles_invert_the_distribution_function(counts):
    quantiles = quantiles_from_histogram(np.arange(len(counts) + 1.0), [counts], 20)[0]
    cumulative = np.concatenate([[0], np.cumsum(counts)]) / sum(counts)
    np.testing.assert_allclose(
        np.interp(quantiles, np.arange(len(counts) + 1.0), cumulative), levels(20), atol=1e-12
    )


def test_linear_density_is_inverted_exactly():
    # f(x) = 2x on [0, 1] has the quantile function sqrt(p), on whatever grid.
    for grid in ([0.0, 1.0], [0.0, 0.3, 1.0]):
        quantiles = quantiles_from_density(grid, [[2 * x for x in grid]], 19)
        np.testing.assert_allclose(quantiles[0], np.sqrt(levels(19)), atol=1e-14)


def test_falling_and_flat_densities():
    np.testing.assert_allclose(quantiles_from_density([0, 1], [[2, 0]], 3)[0], 1 - np.sqrt(1 - levels(3)))
    np.testing.assert_allclose(quantiles_from_density([0, 2], [[7, 7]], 3)[0], 2 * levels(3))


def test_density_of_a_normal_distribution():
    grid = np.linspace(-8, 8, 4001)
    quantiles = quantiles_from_density(grid, norm.pdf(grid)[None] * 3.0, 99)
    np.testing.assert_allclose(quantiles[0], ndtri(levels(99)), atol=1e-5)


def test_density_with_a_gap():
    quantiles = quantiles_from_density([0, 1, 2, 3, 4, 5], [[0, 1, 0, 0, 1, 0]], 3)[0]
    np.testing.assert_allclose(quantiles, [1.0, 2.0, 4.0])


def test_quantiles_at_other_levels():
    np.testing.assert_allclose(quantiles_from_quantiles([0.0, 1.0], [[0.0, 10.0]], 4), [[2, 4, 6, 8]])
    # No tail is invented outside the given levels.
    np.testing.assert_allclose(quantiles_from_quantiles([0.5], [[3.0]], 3), [[3, 3, 3]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantiles_from_samples([]), "samples is empty"),
        (lambda: quantiles_from_samples([[1.0], []]), r"sample 1 has shape \(0,\)"),
        (lambda: quantiles_from_samples([[1.0, np.nan]]), "sample 0 holds nan at position 1"),
        (lambda: quantiles_from_samples([[1.0]], 0), "grid_size is 0"),
        (lambda: quantiles_from_histogram([0, 1, 2], [[1, 1], [1, -1]]), "row 1 holds the negative value -1"),
        (lambda: quantiles_from_histogram([0, 1, 2], [[0, 0]]), "row 0 sums to 0; it has no mass"),
        (lambda: quantiles_from_histogram([0, 1, 1], [[1, 1]]), "does not increase"),
        (lambda: quantiles_from_histogram([0, 1], [[1, 1]]), r"histogram edges must have shape \(3,\)"),
        (lambda: quantiles_from_density([0], [[1]]), "at least two"),
        (lambda: quantiles_from_density([0, 1], [[1, np.inf]]), "row 0 holds inf"),
        (lambda: quantiles_from_quantiles([0.2, 1.2], [[0, 1]]), "row 0 ends at 1.2, above 1"),
        (lambda: quantiles_from_quantiles([0.2, 0.4], [[1, 0]]), "row 0 decreases by 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
