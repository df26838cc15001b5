"""Functions of the eigenvalues of symmetric matrices, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

ScalarFunction = Callable[[np.ndarray], np.ndarray]

# Eigenvalues closer than this, beside the largest, share the derivative at their midpoint: there the
# difference quotient would lose more digits by cancellation than the midpoint rule loses by curvature.
NEAR_EIGENVALUES = 1e-6


def eigenvalues_and_vectors(
    matrices: Float[np.ndarray, "*m q q"],
) -> tuple[Float[np.ndarray, "*m q"], Float[np.ndarray, "*m q q"]]:
    """Ascending eigenvalues and eigenvectors (columns); NaN for matrices that are not finite."""
    finite = np.all(np.isfinite(matrices), axis=(-2, -1))
    if finite.all():
        return np.linalg.eigh(matrices)
    values, vectors = np.linalg.eigh(np.where(finite[..., None, None], matrices, 0.0))
    return np.where(finite[..., None], values, np.nan), np.where(finite[..., None, None], vectors, np.nan)


def compose(
    values: Float[np.ndarray, "*m q"], vectors: Float[np.ndarray, "*m q q"]
) -> Float[np.ndarray, "*m q q"]:
    """U diag(values) U'."""
    return (vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def spectral_map(
    matrices: Float[np.ndarray, "*m q q"], function: ScalarFunction
) -> Float[np.ndarray, "*m q q"]:
    """U diag(f(lambda)) U', exactly symmetric; `function` sees the eigenvalues along its last axis."""
    values, vectors = eigenvalues_and_vectors(matrices)
    mapped = compose(function(values), vectors)
    return 0.5 * (mapped + np.swapaxes(mapped, -1, -2))


def spectral_map_with_pullback(
    matrices: Float[np.ndarray, "m q q"], function: ScalarFunction, derivative: ScalarFunction
) -> tuple[Float[np.ndarray, "m q q"], Callable[[np.ndarray], np.ndarray]]:
    """`spectral_map` and its pullback, by the first divided differences of f (Daleckii and Krein 1965)."""
    values, vectors = eigenvalues_and_vectors(matrices)
    mapped = function(values)
    difference = values[..., :, None] - values[..., None, :]
    near = np.abs(difference) <= NEAR_EIGENVALUES * np.abs(values).max(axis=-1)[..., None, None]
    midpoint = 0.5 * (values[..., :, None] + values[..., None, :])
    quotient = np.where(
        near,
        derivative(midpoint),
        (mapped[..., :, None] - mapped[..., None, :]) / np.where(near, 1.0, difference),
    )

    def pullback(gradient: np.ndarray) -> np.ndarray:
        symmetric = 0.5 * (gradient + np.swapaxes(gradient, -1, -2))
        transposed = np.swapaxes(vectors, -1, -2)
        return vectors @ (quotient * (transposed @ symmetric @ vectors)) @ transposed

    return compose(mapped, vectors), pullback


def positive_part(values: np.ndarray) -> np.ndarray:
    """max(lambda, 0): its spectral map is the projection onto the positive semi-definite matrices."""
    return np.maximum(values, 0.0)


def positive_part_derivative(values: np.ndarray) -> np.ndarray:
    """1 where lambda > 0, else 0."""
    return (values > 0.0).astype(np.float64)


def nonnegative_power(exponent: float) -> ScalarFunction:
    """lambda -> lambda^exponent for lambda > 0, else 0.

    Eigenvalues at the rounding error of the largest count as zero: a root would blow 1e-16 up to 1e-8.
    """

    def power(values: np.ndarray) -> np.ndarray:
        floor = 4.0 * values.shape[-1] * np.finfo(np.float64).eps * np.abs(values).max(axis=-1, keepdims=True)
        return np.where(values > floor, np.power(np.maximum(values, floor), exponent), 0.0)

    return power


def nonnegative_power_derivative(exponent: float) -> ScalarFunction:
    """The derivative of `nonnegative_power`, with 0 at and below zero.

    For an exponent below one the derivative at zero is infinite. Zero is right for graph Laplacians of
    connected graphs, whose eigenvalue zero and its eigenvector (the constant) never move.
    """

    def derivative(values: np.ndarray) -> np.ndarray:
        floor = 1e-12 * np.abs(values).max(axis=(-2, -1), keepdims=True)
        safe = np.where(values > floor, values, 1.0)
        return np.where(values > floor, exponent * safe ** (exponent - 1.0), 0.0)

    return derivative


def symmetric_coordinates(matrices: Float[np.ndarray, "n q q"]) -> Float[np.ndarray, "n d"]:
    """The q (q + 1) / 2 coordinates of symmetric matrices in which the Frobenius distance is Euclidean."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    return matrices[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
