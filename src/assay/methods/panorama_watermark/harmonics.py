"""Spherical harmonics: analysis and synthesis on rings of equally spaced points.

The convention is the orthonormal one with the Condon-Shortley phase: f = sum a_lm Y_lm, and a real field has
a_{l,-m} = (-1)^m conj(a_lm), so only m >= 0 is kept, order by order (see `legendre`).

An equirectangular image with pixel centres at colatitude (i + 1/2) pi / H and longitude (j + 1/2) 2 pi / W is
Fejér's first quadrature in colatitude: exact up to degree H - 1, so coefficients of a field of degree L are
exact for H > 2 L. Products of fields are taken on a Gauss-Legendre grid that is exact for the degree of the
product.

A transform is one FFT a ring and a sum over rings against the normalised Legendre functions, in float64 (but
for the FFT of maps that come in float32). Single maps use a compiled kernel that makes those functions on the
fly; batches use tables of them and matrix products. Where ducc0 is installed, single maps are drawn by it:
that takes a third of the time on 256 rings and two thirds on 1024. For the rest it isn't faster on one
thread, and it is never required, because its licence is the GPL.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import scipy.fft
from jaxtyping import Complex, Float

from assay.errors import InputError
from assay.methods.panorama_watermark.legendre import (
    analyse_rings,
    coefficient_count,
    coefficient_places,
    degrees_and_orders,
    legendre_functions,
    recursion,
    synthesise_rings,
)


@dataclass(frozen=True)
class Grid:
    """Rings of equally spaced points, symmetric about the equator.

    Args:
        kind: "fejer" (an equirectangular image's pixel centres) or "gauss" (Gauss-Legendre nodes).
        rings: number of rings.
        columns: points on a ring; the first is half a step from longitude 0 on a "fejer" grid, and at 0 on a
            "gauss" grid.
    """

    kind: str
    rings: int
    columns: int

    @property
    def first_longitude(self) -> float:
        """Longitude of the first column, in radians."""
        return np.pi / self.columns if self.kind == "fejer" else 0.0

    @functools.cached_property
    def colatitudes(self) -> Float[np.ndarray, " rings"]:
        """Colatitudes of the rings, in radians, from the north pole."""
        return _ring_quadrature(self.kind, self.rings)[0]

    @functools.cached_property
    def weights(self) -> Float[np.ndarray, " rings"]:
        """Quadrature weight of every point of a ring; over the whole grid they sum to 4 pi."""
        return _ring_quadrature(self.kind, self.rings)[1] * (2 * np.pi / self.columns)

    def __hash__(self) -> int:
        return hash((self.kind, self.rings, self.columns))


def image_grid(height: int) -> Grid:
    """The grid of the pixel centres of an equirectangular image of `height` x `2 height` pixels."""
    return Grid("fejer", height, 2 * height)


def product_grid(first: int, second: int, third: int) -> Grid:
    """The smallest Gauss-Legendre grid that integrates a product of fields of three degrees exactly.

    A product of two fields of degree L has degree 2 L. On a grid made for degree L it aliases, and what
    should be an invariant is none.
    """
    total = first + second + third
    return Grid("gauss", total // 2 + 1, total + 2)


def _gauss_legendre(rings: int) -> tuple[np.ndarray, np.ndarray]:
    """Colatitudes and weights by Newton's method in the colatitude.

    The weight is 2 / (dP/dtheta)^2, which is stationary in theta but for cot(theta), and P comes from the
    recursion of its differences in 1 - cos(theta): full accuracy also near the poles, where NumPy's and
    SciPy's weights are off by 1e-11.
    """
    half = (rings + 1) // 2
    theta = np.pi * (4 * np.arange(1, half + 1) - 1) / (4 * rings + 2)
    slope = np.ones(half)
    for _ in range(5):
        below = 2 * np.sin(theta / 2) ** 2
        previous, difference = np.ones(half), -below
        value = previous + difference
        for k in range(1, rings):
            difference = (k * difference - (2 * k + 1) * below * value) / (k + 1)
            previous, value = value, value + difference
        slope = rings * ((1 - below) * value - previous) / np.sin(theta)
        theta = theta - value / slope
    if rings % 2:
        theta[-1] = np.pi / 2
    weights = 2 / slope**2
    middle = rings % 2
    south = np.pi - theta[::-1][middle:]
    return np.concatenate([theta, south]), np.concatenate([weights, weights[::-1][middle:]])


@functools.lru_cache(maxsize=64)
def _ring_quadrature(kind: str, rings: int) -> tuple[np.ndarray, np.ndarray]:
    if kind == "gauss":
        return _gauss_legendre(rings)
    colatitudes = (np.arange(rings) + 0.5) * np.pi / rings
    # Fejér's first rule: the integral of cos(2 k theta) sin(theta) is 2 / (1 - 4 k^2), summed by one DCT.
    moments = np.zeros(rings)
    moments[::2] = 2.0 / (1.0 - np.arange(0, rings, 2.0) ** 2)
    weights = np.asarray(scipy.fft.dct(moments, type=3)) / rings
    return colatitudes, weights


@functools.lru_cache(maxsize=8)
def _half_table(grid: Grid, lmax: int) -> np.ndarray:
    return legendre_functions(grid.colatitudes[: (grid.rings + 1) // 2], lmax)


def _order_phases(grid: Grid, lmax: int) -> Complex[np.ndarray, " orders"]:
    return np.exp(-1j * np.arange(lmax + 1) * grid.first_longitude)


def _ring_spectra(maps: np.ndarray, grid: Grid, lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums and differences of the spectra of mirrored rings, shape (..., ring pairs, orders)."""
    spectra = np.zeros((*maps.shape[:-1], lmax + 1), dtype=np.complex128)
    kept = min(lmax, grid.columns // 2) + 1
    spectra[..., :kept] = np.asarray(scipy.fft.rfft(maps, axis=-1))[..., :kept]
    spectra *= _order_phases(grid, lmax)
    half = (grid.rings + 1) // 2
    spectra *= grid.weights[:, None]
    north, south = spectra[..., :half, :], spectra[..., ::-1, :][..., :half, :]
    if grid.rings % 2:
        south = south.copy()
        south[..., -1, :] = 0.0
    return north + south, north - south


def _check_maps(maps: np.ndarray, grid: Grid) -> None:
    if maps.shape[-2:] != (grid.rings, grid.columns):
        raise InputError(f"a map of {grid.rings} x {grid.columns} points is needed, got {maps.shape[-2:]}")


def analyse(
    maps: Float[np.ndarray, "*batch rings columns"], grid: Grid, lmax: int
) -> Complex[np.ndarray, "*batch coefficients"]:
    """Spherical-harmonic coefficients of real maps on a grid.

    Exact for fields of degree `lmax` where the grid's quadrature is exact for degree `2 lmax`: on more than
    `lmax` rings of a "gauss" grid and on more than `2 lmax` of a "fejer" grid.

    Raises:
        InputError: the maps don't fit the grid, or the degree is out of range.
    """
    maps = np.asarray(maps)
    _check_maps(maps, grid)
    factors = recursion(lmax)
    even, odd = _ring_spectra(maps, grid, lmax)
    if maps.ndim == 2:
        half = even.shape[0]
        cosines = np.cos(grid.colatitudes[:half])
        sines = np.sin(grid.colatitudes[:half])
        return analyse_rings(_planes(even), _planes(odd), cosines, sines, *factors, lmax)
    return _analyse_batch(even, odd, _half_table(grid, lmax), lmax)


def _planes(spectra: np.ndarray) -> np.ndarray:
    """(ring pairs, orders) complex -> (orders, real and imaginary, ring pairs), contiguous."""
    return np.ascontiguousarray(np.stack([np.real(spectra), np.imag(spectra)], axis=0).transpose(2, 0, 1))


def _analyse_batch(even: np.ndarray, odd: np.ndarray, table: np.ndarray, lmax: int) -> np.ndarray:
    batch = even.shape[:-2]
    half = even.shape[-2]
    # (orders, ring pairs, batch): one matrix product an order and parity.
    even = np.ascontiguousarray(even.reshape(-1, half, lmax + 1).transpose(2, 1, 0))
    odd = np.ascontiguousarray(odd.reshape(-1, half, lmax + 1).transpose(2, 1, 0))
    coefficients = np.empty((coefficient_count(lmax), even.shape[2]), dtype=np.complex128)
    position = 0
    for m in range(lmax + 1):
        rows = table[position : position + lmax + 1 - m]
        out = coefficients[position : position + lmax + 1 - m]
        out[0::2] = _real_times_complex(rows[0::2], even[m])
        out[1::2] = _real_times_complex(rows[1::2], odd[m])
        position += lmax + 1 - m
    return np.ascontiguousarray(coefficients.T).reshape(*batch, -1)


def _real_times_complex(real: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A real matrix times a complex one, without making the real one complex."""
    return (real @ other.view(np.float64)).view(np.complex128)


@functools.cache
def _ducc0() -> ModuleType | None:
    """ducc0, where its user has installed it."""
    try:
        return importlib.import_module("ducc0")
    except ImportError:
        return None


def _synthesise_with(ducc0: ModuleType, coefficients: np.ndarray, grid: Grid, lmax: int) -> np.ndarray:
    """One map by ducc0, whose order of coefficients is ours."""
    rings = ducc0.sht.synthesis(
        alm=coefficients[None],
        spin=0,
        lmax=lmax,
        theta=grid.colatitudes,
        nphi=np.full(grid.rings, grid.columns, np.uint64),
        phi0=np.full(grid.rings, grid.first_longitude),
        ringstart=np.arange(grid.rings, dtype=np.uint64) * grid.columns,
        nthreads=1,
    )
    return np.asarray(rings).reshape(grid.rings, grid.columns)


def synthesise(
    coefficients: Complex[np.ndarray, "*batch coefficients"], grid: Grid, lmax: int
) -> Float[np.ndarray, "*batch rings columns"]:
    """Real maps on a grid from spherical-harmonic coefficients.

    Raises:
        InputError: the number of coefficients isn't that of degree `lmax`, or the grid has too few columns.
    """
    coefficients = np.ascontiguousarray(coefficients, dtype=np.complex128)
    if coefficients.shape[-1] != coefficient_count(lmax):
        raise InputError(
            f"degree {lmax} has {coefficient_count(lmax)} coefficients, got {coefficients.shape[-1]}"
        )
    if grid.columns <= 2 * lmax:
        raise InputError(f"degree {lmax} needs more than {2 * lmax} columns, the grid has {grid.columns}")
    factors = recursion(lmax)
    if coefficients.ndim == 1 and (ducc0 := _ducc0()) is not None:
        return _synthesise_with(ducc0, coefficients, grid, lmax)
    half = (grid.rings + 1) // 2
    if coefficients.ndim == 1:
        angles = grid.colatitudes[:half]
        planes = synthesise_rings(coefficients, np.cos(angles), np.sin(angles), *factors, lmax)
        even, odd = ((part[:, 0] + 1j * part[:, 1]).T for part in planes)
    else:
        even, odd = _synthesise_batch(coefficients, _half_table(grid, lmax), lmax, half)
    spectra = np.zeros((*coefficients.shape[:-1], grid.rings, grid.columns // 2 + 1), dtype=np.complex128)
    phases = _order_phases(grid, lmax).conj()
    spectra[..., :half, : lmax + 1] = (even + odd) * phases
    mirrored = (even - odd)[..., : grid.rings // 2, :]
    spectra[..., half:, : lmax + 1] = mirrored[..., ::-1, :] * phases
    return np.asarray(scipy.fft.irfft(spectra, n=grid.columns, axis=-1, norm="forward"))


def _synthesise_batch(
    coefficients: np.ndarray, table: np.ndarray, lmax: int, half: int
) -> tuple[np.ndarray, np.ndarray]:
    batch = coefficients.shape[:-1]
    flat = np.ascontiguousarray(coefficients.reshape(-1, coefficients.shape[-1]).T)
    even = np.empty((lmax + 1, half, flat.shape[1]), dtype=np.complex128)
    odd = np.zeros_like(even)
    position = 0
    for m in range(lmax + 1):
        rows = table[position : position + lmax + 1 - m]
        values = flat[position : position + lmax + 1 - m]
        even[m] = _real_times_complex(rows[0::2].T, np.ascontiguousarray(values[0::2]))
        if m < lmax:
            odd[m] = _real_times_complex(rows[1::2].T, np.ascontiguousarray(values[1::2]))
        position += lmax + 1 - m
    shape = (*batch, half, lmax + 1)
    return even.transpose(2, 1, 0).reshape(shape), odd.transpose(2, 1, 0).reshape(shape)


@functools.lru_cache(maxsize=32)
def _band_layout(lmax: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where the real vector of a band takes its numbers from: coefficient, factor, imaginary?, degree."""
    index, factor, imaginary, degree = [], [], [], []
    for ell in range(low, high + 1):
        orders = np.arange(ell + 1)
        places = coefficient_places(ell, lmax)
        index += [places, places[1:]]
        factor += [np.where(orders > 0, np.sqrt(2.0), 1.0), np.full(ell, np.sqrt(2.0))]
        imaginary += [np.zeros(ell + 1, bool), np.ones(ell, bool)]
        degree += [np.full(2 * ell + 1, ell)]
    return tuple(map(np.concatenate, (index, factor, imaginary, degree)))  # type: ignore[return-value]


def band_vector(
    coefficients: Complex[np.ndarray, "*batch coefficients"], lmax: int, low: int, high: int
) -> Float[np.ndarray, "*batch numbers"]:
    """The degrees `low..high` as real vectors, degree by degree: a_l0, sqrt 2 Re a_lm, sqrt 2 Im a_lm.

    The inner product of two such vectors is the integral of the product of the fields, and a rotation acts on
    each degree's 2 l + 1 numbers by an orthogonal matrix.
    """
    index, factor, imaginary, _ = _band_layout(lmax, low, high)
    picked = np.asarray(coefficients)[..., index]
    return np.where(imaginary, np.imag(picked), np.real(picked)) * factor


def band_coefficients(
    vector: Float[np.ndarray, "*batch numbers"], lmax: int, low: int, high: int
) -> Complex[np.ndarray, "*batch coefficients"]:
    """The inverse of `band_vector`; degrees outside the band are zero."""
    index, factor, imaginary, _ = _band_layout(lmax, low, high)
    scaled = np.asarray(vector) / factor
    out = np.zeros((*scaled.shape[:-1], coefficient_count(lmax)), dtype=np.complex128)
    out.real[..., index[~imaginary]] = scaled[..., ~imaginary]
    out.imag[..., index[imaginary]] = scaled[..., imaginary]
    return out


def band_degrees(low: int, high: int) -> np.ndarray:
    """The degree of every number of a band's real vector."""
    return np.repeat(np.arange(low, high + 1), 2 * np.arange(low, high + 1) + 1)


def power_spectrum(
    coefficients: Complex[np.ndarray, "*batch coefficients"], lmax: int
) -> Float[np.ndarray, "*batch degrees"]:
    """P_l = sum over all orders of |a_lm|^2, l = 0..lmax: the second-order invariants."""
    degrees, orders = degrees_and_orders(lmax)
    energy = np.abs(np.asarray(coefficients)) ** 2 * np.where(orders > 0, 2.0, 1.0)
    flat = energy.reshape(-1, energy.shape[-1])
    spectra = np.stack([np.bincount(degrees, row, minlength=lmax + 1) for row in flat])
    return spectra.reshape(*energy.shape[:-1], lmax + 1)


@functools.lru_cache(maxsize=256)
def _turn_about_y(degree: int) -> np.ndarray:
    """Eigenvectors of the angular momentum J_y of one degree; its eigenvalues are -l..l."""
    m = np.arange(-degree, degree)
    ladder = np.sqrt((degree - m) * (degree + m + 1.0)) / 2
    operator = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=np.complex128)
    steps = np.arange(2 * degree)
    # <m+1|J_y|m> = -i sqrt((l - m)(l + m + 1)) / 2
    operator[steps + 1, steps] = -1j * ladder
    operator[steps, steps + 1] = 1j * ladder
    return np.linalg.eigh(operator)[1]


def rotate_coefficients(
    coefficients: Complex[np.ndarray, " coefficients"], rotation: Float[np.ndarray, "3 3"], lmax: int
) -> Complex[np.ndarray, " coefficients"]:
    """The coefficients of f(R^-1 x), exactly (Wigner's matrices as exponentials of angular momenta).

    Args:
        coefficients: of a real field f of degree `lmax`.
        rotation: the rotation matrix R.
        lmax: the degree.
    """
    from scipy.spatial.transform import Rotation

    with warnings.catch_warnings():
        # Turns about the vertical have many sets of angles, of which any one will do.
        warnings.filterwarnings("ignore", "Gimbal lock", UserWarning)
        alpha, beta, gamma = Rotation.from_matrix(rotation).as_euler("ZYZ")
    out = np.empty(coefficient_count(lmax), dtype=np.complex128)
    for degree in range(lmax + 1):
        orders = np.arange(degree + 1)
        places = coefficient_places(degree, lmax)
        positive = np.asarray(coefficients)[places]
        signs = np.where(orders[1:] % 2, -1.0, 1.0)
        column = np.concatenate([(signs * positive[1:].conj())[::-1], positive])
        m = np.arange(-degree, degree + 1)
        vectors = _turn_about_y(degree)
        column = np.exp(-1j * m * gamma) * column
        column = vectors @ (np.exp(-1j * m * beta) * (vectors.conj().T @ column))
        out[places] = (np.exp(-1j * m * alpha) * column)[degree:]
    return out
