"""The normalised Legendre functions, the storage order of coefficients, and the transform's compiled kernels.

Coefficients are stored order by order (m-major): for m = 0..L the degrees l = m..L, which is also the order
of ducc0 and healpy. Functions of one order follow from the three-term recursion in l. Its start is of the
order of sin(theta)^m and underflows only where every value that matters is below 1e-300, as long as the
degree stays under about 1900 (the worst order is m = L/e at sin(theta) = m/L, where the start is exp(-L/e)).
"""

from __future__ import annotations

import functools

import numba
import numpy as np
from jaxtyping import Float, Int

from assay.errors import InputError

MAX_DEGREE = 1800


def coefficient_count(lmax: int) -> int:
    """How many complex coefficients with m >= 0 a field of degree `lmax` has."""
    return (lmax + 1) * (lmax + 2) // 2


def coefficient_places(degree: int, lmax: int) -> Int[np.ndarray, " orders"]:
    """Where a_l0, a_l1, ..., a_ll stand among the coefficients of a field of degree `lmax`."""
    orders = np.arange(degree + 1)
    return orders * (2 * lmax + 1 - orders) // 2 + degree


@functools.cache
def degrees_and_orders(lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """The degree and the order of every stored coefficient (read-only arrays)."""
    degrees = np.concatenate([np.arange(m, lmax + 1) for m in range(lmax + 1)])
    orders = np.repeat(np.arange(lmax + 1), lmax + 1 - np.arange(lmax + 1))
    degrees.flags.writeable = orders.flags.writeable = False
    return degrees, orders


@functools.lru_cache(maxsize=16)
def recursion(lmax: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors of P_lm = (x P_{l-1,m} - c_{l-1} P_{l-2,m}) / c_l, and of the start P_mm.

    c_lm = sqrt((l^2 - m^2) / (4 l^2 - 1)); P_mm = -sqrt((2m + 1) / 2m) sin(theta) P_{m-1,m-1}.
    """
    if not 0 <= lmax <= MAX_DEGREE:
        raise InputError(f"degrees from 0 to {MAX_DEGREE} are supported, got {lmax}")
    degrees, orders = degrees_and_orders(lmax)
    squares = degrees.astype(float) ** 2
    factors = np.sqrt((squares - orders.astype(float) ** 2) / np.maximum(4 * squares - 1, 1))
    inverse = np.zeros_like(factors)
    np.divide(1.0, factors, out=inverse, where=factors > 0)
    start = np.ones(lmax + 1)
    m = np.arange(1, lmax + 1)
    start[1:] = -np.sqrt((2 * m + 1) / (2 * m))
    return factors, inverse, start


_FAST = {"reassoc", "contract", "nsz"}


@numba.njit(cache=True, fastmath=_FAST, nogil=True)
def analyse_rings(even, odd, cosines, sines, factors, inverse, start, lmax):  # pragma: no cover - compiled
    """a_lm from ring spectra: `even` and `odd` are the sums and differences of mirrored rings, weighted."""
    half = cosines.shape[0]
    coefficients = np.zeros(factors.shape[0], dtype=np.complex128)
    first = np.full(half, np.sqrt(1.0 / (4.0 * np.pi)))
    previous = np.empty(half)
    current = np.empty(half)
    position = 0
    for m in range(lmax + 1):
        if m > 0:
            for i in range(half):
                first[i] *= start[m] * sines[i]
        for i in range(half):
            previous[i] = 0.0
            current[i] = first[i]
        for degree in range(m, lmax + 1):
            real = 0.0
            imaginary = 0.0
            source = odd if (degree - m) % 2 else even
            for i in range(half):
                real += current[i] * source[m, 0, i]
                imaginary += current[i] * source[m, 1, i]
            coefficients[position] = complex(real, imaginary)
            if degree < lmax:
                before = factors[position]
                scale = inverse[position + 1]
                for i in range(half):
                    value = (cosines[i] * current[i] - before * previous[i]) * scale
                    previous[i] = current[i]
                    current[i] = value
            position += 1
    return coefficients


@numba.njit(cache=True, fastmath=_FAST, nogil=True)
def synthesise_rings(coefficients, cosines, sines, factors, inverse, start, lmax):  # pragma: no cover
    """Ring spectra (parts that are even and odd about the equator) from a_lm."""
    half = cosines.shape[0]
    even = np.zeros((lmax + 1, 2, half))
    odd = np.zeros((lmax + 1, 2, half))
    first = np.full(half, np.sqrt(1.0 / (4.0 * np.pi)))
    previous = np.empty(half)
    current = np.empty(half)
    position = 0
    for m in range(lmax + 1):
        if m > 0:
            for i in range(half):
                first[i] *= start[m] * sines[i]
        for i in range(half):
            previous[i] = 0.0
            current[i] = first[i]
        for degree in range(m, lmax + 1):
            real = coefficients[position].real
            imaginary = coefficients[position].imag
            target = odd if (degree - m) % 2 else even
            for i in range(half):
                target[m, 0, i] += current[i] * real
                target[m, 1, i] += current[i] * imaginary
            if degree < lmax:
                before = factors[position]
                scale = inverse[position + 1]
                for i in range(half):
                    value = (cosines[i] * current[i] - before * previous[i]) * scale
                    previous[i] = current[i]
                    current[i] = value
            position += 1
    return even, odd


@numba.njit(cache=True)
def _legendre_functions(colatitudes, factors, inverse, start, lmax):  # pragma: no cover - compiled
    """The normalised Legendre functions, shape (coefficients, rings)."""
    table = np.empty((factors.shape[0], colatitudes.shape[0]))
    for i in range(colatitudes.shape[0]):
        x = np.cos(colatitudes[i])
        y = np.sin(colatitudes[i])
        first = np.sqrt(1.0 / (4.0 * np.pi))
        position = 0
        for m in range(lmax + 1):
            if m > 0:
                first *= start[m] * y
            previous = 0.0
            current = first
            for degree in range(m, lmax + 1):
                table[position, i] = current
                if degree < lmax:
                    value = (x * current - factors[position] * previous) * inverse[position + 1]
                    previous = current
                    current = value
                position += 1
    return table


def legendre_functions(
    colatitudes: Float[np.ndarray, " points"], lmax: int
) -> Float[np.ndarray, "coefficients points"]:
    """Y_lm at longitude 0 for every stored (l, m), at the given colatitudes (radians)."""
    return _legendre_functions(np.asarray(colatitudes, dtype=float), *recursion(lmax), lmax)
