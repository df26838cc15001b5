"""Analysis, synthesis, rotations and the bispectrum against closed forms and independent implementations."""

from types import SimpleNamespace

import mpmath
import numpy as np
import pyshtools
import pytest
from scipy.special import sph_harm_y

from assay.errors import InputError
from assay.methods.panorama_watermark import harmonics
from assay.methods.panorama_watermark.bispectral import bispectrum, clebsch_gordan, couple, product_factor
from assay.methods.panorama_watermark.harmonics import (
    Grid,
    analyse,
    band_coefficients,
    band_vector,
    coefficient_count,
    coefficient_places,
    degrees_and_orders,
    image_grid,
    legendre_functions,
    power_spectrum,
    product_grid,
    rotate_coefficients,
    synthesise,
)
from assay.methods.panorama_watermark.luma import field_for_degree, luma_coefficients
from assay.methods.panorama_watermark.rotations import random_rotation


def random_field(lmax, seed=0, batch=()):
    rng = np.random.default_rng(seed)
    _, orders = degrees_and_orders(lmax)
    shape = (*batch, coefficient_count(lmax))
    out = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return np.where(orders == 0, out.real, out)


def evaluate(coefficients, points, lmax):
    """The field at unit vectors, by SciPy's spherical harmonics."""
    degrees, orders = degrees_and_orders(lmax)
    theta, phi = np.arccos(points[:, 2]), np.arctan2(points[:, 1], points[:, 0])
    terms = coefficients * sph_harm_y(degrees, orders, theta[:, None], phi[:, None])
    return (terms.real * np.where(orders > 0, 2, 1)).sum(axis=1)


@pytest.mark.parametrize("grid", [image_grid(256), image_grid(225), product_grid(64, 64, 112)])
def test_round_trip(grid):
    coefficients = random_field(112)
    back = analyse(synthesise(coefficients, grid, 112), grid, 112)
    assert np.abs(back - coefficients).max() < 1e-10


def test_batches_agree_with_single_maps():
    coefficients = random_field(40, batch=(2, 3))
    for grid in (image_grid(81), product_grid(40, 40, 41)):
        maps = synthesise(coefficients, grid, 40)
        assert maps.shape == (2, 3, grid.rings, grid.columns)
        np.testing.assert_allclose(maps[1, 2], synthesise(coefficients[1, 2], grid, 40), atol=1e-11)
        back = analyse(maps, grid, 40)
        np.testing.assert_allclose(back[1, 2], analyse(maps[1, 2], grid, 40), atol=1e-11)


def test_values_are_those_of_the_spherical_harmonics():
    coefficients = random_field(9)
    grid = image_grid(12)
    theta = np.repeat(grid.colatitudes, grid.columns)
    phi = np.tile(grid.first_longitude + 2 * np.pi * np.arange(grid.columns) / grid.columns, grid.rings)
    points = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1)
    expected = evaluate(coefficients, points, 9).reshape(grid.rings, grid.columns)
    np.testing.assert_allclose(synthesise(coefficients, grid, 9), expected, atol=1e-11)


def test_parseval():
    coefficients = random_field(112)
    grid = image_grid(256)
    field = synthesise(coefficients, grid, 112)
    energy = (field**2 * grid.weights[:, None]).sum()
    assert (band_vector(coefficients, 112, 0, 112) ** 2).sum() == pytest.approx(energy, rel=1e-10)
    assert power_spectrum(coefficients, 112).sum() == pytest.approx(energy, rel=1e-10)
    assert grid.weights.sum() * grid.columns == pytest.approx(4 * np.pi, rel=1e-13)


def test_band_vectors():
    coefficients = random_field(20, batch=(2,))
    vector = band_vector(coefficients, 20, 5, 9)
    back = band_coefficients(vector, 20, 5, 9)
    degrees, _ = degrees_and_orders(20)
    inside = (degrees >= 5) & (degrees <= 9)
    np.testing.assert_allclose(back[:, inside], coefficients[:, inside], atol=1e-14)
    assert not back[:, ~inside].any()


@pytest.mark.parametrize("rings", [1, 2, 3, 40, 129])
def test_gauss_legendre_is_accurate_to_the_poles(rings):
    """Nodes and weights against 40 digits; an error in the small weights at the poles costs invariance."""
    grid = Grid("gauss", rings, 1)
    with mpmath.workdps(40):
        for ring in {0, rings // 2}:
            start = mpmath.cos(mpmath.pi * (4 * ring + 3) / (4 * rings + 2))
            node = mpmath.findroot(lambda x: mpmath.legendre(rings, x), start)
            weight = 2 * (1 - node**2) / (rings * mpmath.legendre(rings - 1, node)) ** 2
            assert abs(grid.colatitudes[ring] / mpmath.acos(node) - 1) < 1e-15
            assert abs(grid.weights[ring] / (2 * mpmath.pi * weight) - 1) < 1e-14
    np.testing.assert_allclose(grid.weights, grid.weights[::-1], rtol=1e-15)
    assert grid.weights.sum() == pytest.approx(4 * np.pi, rel=1e-14)


def test_legendre_functions_at_high_degree():
    """High degrees near the poles: no overflow, and the addition theorem holds: sum over m is (2l+1)/4 pi."""
    lmax = 1500
    theta = np.array([1e-3, 0.05, 0.7, 1.5])
    table = legendre_functions(theta, lmax)
    for degree in (700, 1500):
        squares = table[coefficient_places(degree, lmax)] ** 2
        total = squares[0] + 2 * squares[1:].sum(axis=0)
        np.testing.assert_allclose(total, (2 * degree + 1) / (4 * np.pi), rtol=1e-9)


def test_agrees_with_pyshtools():
    lmax = 60
    rng = np.random.default_rng(3)
    cilm = rng.normal(size=(2, lmax + 1, lmax + 1))
    cilm[1, :, 0] = 0
    nodes, weights = pyshtools.expand.SHGLQ(lmax)
    theirs = pyshtools.expand.MakeGridGLQ(cilm, nodes, norm=4, csphase=-1)
    expanded = pyshtools.expand.SHExpandGLQ(theirs, weights, nodes, norm=4, csphase=-1)
    ours = np.zeros(coefficient_count(lmax), complex)
    for degree in range(lmax + 1):
        m = np.arange(degree + 1)
        factor = np.where(m > 0, 1 / np.sqrt(2), 1.0)
        ours[coefficient_places(degree, lmax)] = (
            expanded[0, degree, m] - 1j * expanded[1, degree, m]
        ) * factor
    # Their grid: Gauss-Legendre rings from the north, 2 L + 1 columns from longitude 0.
    grid = Grid("gauss", lmax + 1, 2 * lmax + 1)
    np.testing.assert_allclose(synthesise(ours, grid, lmax), theirs, atol=1e-9)
    np.testing.assert_allclose(analyse(theirs, grid, lmax), ours, atol=1e-10)


def without_ducc0(monkeypatch):
    monkeypatch.setattr(harmonics, "_ducc0", lambda: None)


@pytest.mark.parametrize("grid", [image_grid(130), product_grid(40, 40, 61)], ids=["fejer", "gauss"])
def test_drawing_by_ducc0(grid, monkeypatch):
    """The optional accelerator gives our own numbers."""
    pytest.importorskip("ducc0", reason="GPL: an accelerator for those who have installed it")
    coefficients = random_field(60)
    theirs = synthesise(coefficients, grid, 60)
    assert harmonics._ducc0() is not None
    without_ducc0(monkeypatch)
    np.testing.assert_allclose(synthesise(coefficients, grid, 60), theirs, atol=1e-11)


def test_analysis_agrees_with_ducc0():
    ducc0 = pytest.importorskip("ducc0", reason="GPL: an oracle for those who have installed it")
    field = synthesise(random_field(60), image_grid(130), 60)
    theirs = ducc0.sht.analysis_2d(
        map=field[None], spin=0, lmax=60, mmax=60, geometry="F1", phi0=np.pi / 260
    )[0]
    np.testing.assert_allclose(analyse(field, image_grid(130), 60), theirs, atol=1e-10)


def test_how_ducc0_is_called(monkeypatch):
    """Its contract, as its documentation states it, fulfilled by SciPy: rings in one array, m-major order."""

    def synthesis(*, alm, spin, lmax, theta, nphi, phi0, ringstart, nthreads):
        assert (alm.shape, spin, nthreads) == ((1, coefficient_count(lmax)), 0, 1)
        out = np.full((1, int(nphi.sum())), np.nan)
        for angle, columns, first, start in zip(theta, nphi, phi0, ringstart, strict=True):
            phi = first + 2 * np.pi * np.arange(columns) / columns
            points = np.stack(
                [np.sin(angle) * np.cos(phi), np.sin(angle) * np.sin(phi), np.full(len(phi), np.cos(angle))],
                axis=1,
            )
            out[0, int(start) : int(start) + int(columns)] = evaluate(alm[0], points, lmax)
        return out

    coefficients, grid = random_field(9), image_grid(12)
    without_ducc0(monkeypatch)
    own = synthesise(coefficients, grid, 9)
    monkeypatch.setattr(
        harmonics, "_ducc0", lambda: SimpleNamespace(sht=SimpleNamespace(synthesis=synthesis))
    )
    np.testing.assert_allclose(synthesise(coefficients, grid, 9), own, atol=1e-11)
    batch = random_field(9, batch=(2,))
    np.testing.assert_allclose(synthesise(batch, grid, 9)[1], synthesise(batch[1], grid, 9), atol=1e-11)


def test_rotation_of_coefficients():
    coefficients, rotation = random_field(12), random_rotation(5)
    points = np.random.default_rng(1).normal(size=(20, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    turned = evaluate(rotate_coefficients(coefficients, rotation, 12), points, 12)
    np.testing.assert_allclose(turned, evaluate(coefficients, points @ rotation, 12), atol=1e-11)


def test_clebsch_gordan_against_sympy():
    from sympy.physics.quantum.cg import CG

    rng = np.random.default_rng(0)
    for _ in range(60):
        l1, l2 = rng.integers(0, 7, 2)
        degree = rng.integers(abs(l1 - l2), l1 + l2 + 1)
        order = rng.integers(-degree, degree + 1)
        m1, values = clebsch_gordan(int(l1), int(l2), int(degree), int(order))
        pick = rng.integers(len(m1))
        expected = CG(int(l1), int(m1[pick]), int(l2), int(order - m1[pick]), int(degree), int(order)).doit()
        assert values[pick] == pytest.approx(float(expected), abs=1e-12)


def test_clebsch_gordan_is_orthogonal_at_high_degree():
    """At degree 100, where Racah's sum has lost every digit: rows of different l are orthonormal."""
    rows = np.stack([clebsch_gordan(90, 100, degree, 7)[1] for degree in range(10, 191, 20)])
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-11)


TRIPLES = [(2, 3, 5), (8, 8, 12), (12, 9, 10), (20, 15, 18), (3, 4, 6), (11, 14, 20), (17, 2, 18)]


def test_bispectrum_is_invariant_under_rotation():
    coefficients = random_field(20, seed=2)
    before = bispectrum(coefficients, TRIPLES, 20)
    assert np.abs(before).min() > 1e-3
    for seed in range(5):
        after = bispectrum(rotate_coefficients(coefficients, random_rotation(seed), 20), TRIPLES, 20)
        np.testing.assert_allclose(after, before, rtol=1e-11, atol=1e-11 * np.abs(before).max())


def test_mirror_images():
    """Even sums don't change in a mirror image; odd sums change their sign."""
    coefficients = random_field(20, seed=2)
    mirrored = bispectrum(coefficients.conj(), TRIPLES, 20)
    signs = np.array([(-1.0) ** sum(triple) for triple in TRIPLES])
    np.testing.assert_allclose(mirrored, signs * bispectrum(coefficients, TRIPLES, 20), atol=1e-10)


def test_product_of_fields_is_their_coupling():
    """P_l[f g] = factor * (a (x) b)_l, for fields of single degrees."""
    grid = product_grid(6, 6, 12)
    degrees, _ = degrees_and_orders(12)
    base = random_field(12, seed=4)
    for l1, l2 in ((6, 5), (4, 4), (6, 2)):
        first, second = base * (degrees == l1), base * (degrees == l2)
        product = analyse(synthesise(first, grid, 12) * synthesise(second, grid, 12), grid, 12)
        for degree in range(abs(l1 - l2), l1 + l2 + 1):
            expected = product_factor(l1, l2, degree) * couple(base, l1, l2, degree, 12)[degree:]
            np.testing.assert_allclose(product[coefficient_places(degree, 12)], expected, atol=1e-11)


@pytest.mark.parametrize("triple", [(2, 3, 6), (2, 3, 0), (30, 2, 30), (-1, 2, 2)])
def test_bad_triples(triple):
    with pytest.raises(InputError, match="triple"):
        bispectrum(random_field(20), [triple], 20)


def test_bad_sizes():
    with pytest.raises(InputError, match="coefficients"):
        synthesise(np.zeros(5, complex), image_grid(20), 10)
    with pytest.raises(InputError, match="columns"):
        synthesise(random_field(30), image_grid(20), 30)
    with pytest.raises(InputError, match="map of"):
        analyse(np.zeros((4, 9)), image_grid(4), 3)
    with pytest.raises(InputError, match="degrees"):
        analyse(np.zeros((4, 8)), image_grid(4), 5000)
    with pytest.raises(InputError, match="coefficients"):
        bispectrum(np.zeros(7, complex), [(1, 1, 2)], 10)


def test_images_with_few_rows():
    """Interpolated rows make analysis exact up to one degree under the number of rows."""
    coefficients = random_field(40)
    small = synthesise(coefficients, image_grid(50), 40)
    np.testing.assert_allclose(luma_coefficients(small, 40), coefficients, atol=1e-11)
    degrees, _ = degrees_and_orders(60)
    beyond = luma_coefficients(small, 60)
    np.testing.assert_allclose(beyond[degrees <= 40], coefficients, atol=1e-11)
    assert np.abs(beyond[degrees > 40]).max() < 1e-11
    large = synthesise(coefficients, image_grid(81), 40)
    assert field_for_degree(large, 40)[0] is large
