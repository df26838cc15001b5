"""The other marks: what they write they read, at the fidelity asked for, until the sphere is turned."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.transform import Rotation

from assay.errors import InputError, MissingDependencyError
from assay.methods.panorama_watermark import attacks
from assay.methods.panorama_watermark.baselines import (
    FixedDirections,
    LibraryMark,
    PlanarSpectrum,
    PowerSpectrumMark,
    strongest,
)
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.harmonics import band_vector, rotate_coefficients
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.quality import ws_psnr
from assay.methods.panorama_watermark.rotation_search import (
    rotation_candidates,
    rotations_within,
    search_rotation,
)
from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama, rotation_matrix
from assay.methods.panorama_watermark.schedule import BANDS

KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(1, 33)))
MARKS = {
    "planar": PlanarSpectrum(KEY, 256),
    "power-spectrum": PowerSpectrumMark(KEY, BANDS["mid"]),
    "fixed-directions": FixedDirections(KEY, BANDS["mid"]),
}
FIDELITY = 42.0


@pytest.fixture(scope="module")
def forest():
    return panoramas(["forest"])["forest"]


@pytest.fixture(scope="module")
def words():
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2, mark.bits).astype(np.uint8) for name, mark in MARKS.items()}


@pytest.fixture(scope="module")
def marked(forest, words):
    return {name: mark.embed(forest, words[name], FIDELITY) for name, mark in MARKS.items()}


def accuracy(mark, image, word):
    return np.mean((mark.soft_values(image) < 0) == word)


@pytest.mark.parametrize("name", MARKS)
def test_what_is_written_is_read_at_the_fidelity_that_was_asked_for(name, forest, marked, words):
    image, mark = marked[name], MARKS[name]
    assert image.dtype == np.uint8
    assert image.shape == forest.shape
    assert FIDELITY <= ws_psnr(forest, image) < FIDELITY + 0.05
    assert accuracy(mark, image, words[name]) == 1.0
    # Read from a copy that was stored and made smaller, as well.
    assert accuracy(mark, attacks.resize(attacks.jpeg(image, 80), 0.5), words[name]) >= 0.95


@pytest.mark.parametrize("name", MARKS)
def test_every_bit_reaches_about_the_same_margin(name, marked, words):
    margins = MARKS[name].soft_values(marked[name]) * (1.0 - 2.0 * words[name])
    at_margin = np.quantile(margins, 0.1)
    assert margins.min() > 0.8 * at_margin > 0


@pytest.mark.parametrize("name", MARKS)
def test_another_key_reads_chance(name, marked, words):
    other = {
        "planar": PlanarSpectrum(OTHER, 256),
        "power-spectrum": PowerSpectrumMark(OTHER, BANDS["mid"]),
        "fixed-directions": FixedDirections(OTHER, BANDS["mid"]),
    }[name]
    spread = 4 * np.sqrt(0.25 / other.bits)
    assert abs(accuracy(other, marked[name], words[name]) - 0.5) < spread


def test_only_the_invariant_survives_a_turn(marked, words):
    turned = {name: rotate_panorama(image, random_rotation(5)) for name, image in marked.items()}
    assert accuracy(MARKS["power-spectrum"], turned["power-spectrum"], words["power-spectrum"]) == 1.0
    for name in ("planar", "fixed-directions"):
        assert 0.35 < accuracy(MARKS[name], turned[name], words[name]) < 0.65


def test_the_power_spectrum_is_an_exact_invariant(forest):
    band, mark = BANDS["mid"], MARKS["power-spectrum"]
    low, high = band.payload
    coefficients = luma_coefficients(pixel_scale(forest).luma(forest), high)
    turned = rotate_coefficients(coefficients, random_rotation(2), high)
    before, after = (mark._differences(band_vector(one, high, low, high)) for one in (coefficients, turned))
    assert mark.bits == 24
    np.testing.assert_allclose(after, before, atol=1e-11)


def test_a_gain_of_the_image_changes_no_second_order_bit(forest):
    mark = MARKS["power-spectrum"]
    half = mark.soft_values((forest // 4).astype(np.uint8))
    assert np.corrcoef(half, mark.soft_values(forest))[0, 1] > 0.9


@given(st.integers(0, 2**32 - 1), st.integers(20, 127))
@settings(max_examples=15, deadline=None)
def test_the_planar_change_is_what_was_asked_for(seed, bits):
    mark = PlanarSpectrum(KEY, 64, bits)
    rng = np.random.default_rng(seed)
    size = 64 // 8 * 128 // 8 * 6
    change = rng.normal(size=size)
    field = mark._field(change)
    # The block transform is orthonormal, so fields have the norm of their coefficients.
    np.testing.assert_allclose(mark._coefficients(field), change, atol=1e-10)
    assert np.linalg.norm(field) == pytest.approx(np.linalg.norm(change))
    places, chips = mark._places
    assert len(np.unique(places)) == places.size <= size
    assert set(np.unique(chips)) <= {-1.0, 1.0}


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_any_planar_word_comes_back(seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(60, 200, (64, 128, 3)).astype(np.uint8)
    mark = PlanarSpectrum(KEY, 64, 40)
    word = rng.integers(0, 2, 40).astype(np.uint8)
    assert accuracy(mark, mark.embed(image, word, 30.0), word) == 1.0


def test_the_strongest_is_the_last_that_keeps_the_fidelity():
    image = np.full((8, 16), 100, np.uint8)

    def draw(margin):
        return image + np.uint8(min(margin, 100))

    # A change of d levels everywhere has a PSNR of 20 log10(255 / d).
    for levels in (1, 2, 7):
        fidelity = 20 * np.log10(255 / levels)
        assert (strongest(draw, image, fidelity - 1e-9) == image + levels).all()
    with pytest.raises(InputError, match="fits into 42"):
        strongest(lambda margin: image + np.uint8(50), image, 42.0)


def test_a_planar_mark_is_for_one_size(forest):
    with pytest.raises(InputError, match="images of 128 rows, got 256"):
        PlanarSpectrum(KEY, 128).embed(forest, np.zeros(127, np.uint8), 42.0)
    with pytest.raises(InputError, match="don't fit"):
        PlanarSpectrum(KEY, 8).soft_values(np.zeros((8, 16), np.uint8))


# The marks of invisible-watermark.


def test_a_library_that_is_missing_is_named(monkeypatch, forest):
    monkeypatch.setitem(sys.modules, "imwatermark", None)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps invisible-watermark"):
        LibraryMark("dwtDctSvd", 48, 256).soft_values(forest)


@pytest.mark.parametrize(
    ("method", "bits"), [("dwtDctSvd", 48), pytest.param("rivaGan", 32, marks=pytest.mark.slow)]
)
def test_library_marks_are_read_until_the_sphere_is_turned(method, bits, forest):
    # An optional peer that no extra installs: it needs another build of OpenCV than servers have.
    pytest.importorskip("imwatermark", reason="invisible-watermark is an optional peer")
    if method == "rivaGan":
        pytest.importorskip("onnxruntime", reason="RivaGAN's runtime is an optional peer")
    mark = LibraryMark(method, bits, 256)
    word = np.random.default_rng(1).integers(0, 2, bits).astype(np.uint8)
    image = mark.embed(forest, word)
    assert image.shape == forest.shape
    assert 25 < ws_psnr(forest, image) < 45
    assert accuracy(mark, image, word) == 1.0
    assert accuracy(mark, rotate_panorama(image, random_rotation(5)), word) < 0.75


# The search for a rotation.


def test_candidates_are_turns_of_the_heading_and_an_even_cover():
    found = rotation_candidates(1064)
    np.testing.assert_allclose(
        found @ found.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (1064, 3, 3)), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(found), 1.0)
    headings, cover = found[:64], found[64:]
    np.testing.assert_allclose(headings[:, 2, 2], 1.0)
    np.testing.assert_allclose(headings[3], rotation_matrix(yaw=3 * 360 / 64), atol=1e-12)
    # Angles of uniform rotations have the distribution function (a - sin a) / pi.
    angles = Rotation.from_matrix(cover).magnitude()
    assert stats.kstest(angles, lambda a: (a - np.sin(a)) / np.pi).statistic < 0.02
    assert np.abs(cover.mean(axis=0)).max() < 0.03
    assert len(rotation_candidates(10)) == 10


def test_so_many_rotations_are_needed():
    drawn = Rotation.random(200_000, rng=np.random.default_rng(0)).magnitude()
    share = np.mean(drawn <= np.radians(30))
    assert rotations_within(30) == pytest.approx(1 / share, rel=0.1)
    assert rotations_within(0.5) > 2e7


def test_a_search_finds_a_turn_of_the_heading_and_no_other(marked, words):
    image, mark, word = marked["planar"], MARKS["planar"], words["planar"]
    candidates = rotation_candidates(24, headings=16)
    turned = rotate_panorama(image, rotation_matrix(yaw=90.0))
    found = search_rotation(mark, turned, word, candidates)
    # The turn back by 90 degrees is the twelfth of sixteen.
    assert found.rotation == 12
    assert found.matches == 127
    assert found.p_value == pytest.approx(24 * 2.0**-127)
    lost = search_rotation(mark, rotate_panorama(image, random_rotation(5)), word, candidates)
    assert lost.p_value > 1e-3
