"""The closed-form engine: invariance, the trap of aliasing, optimality, and embedding into real panoramas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.stats import binom, chisquare

from assay.errors import InputError
from assay.methods.panorama_watermark import attacks
from assay.methods.panorama_watermark.bch import find_code
from assay.methods.panorama_watermark.bispectral import bispectrum, product_factor
from assay.methods.panorama_watermark.carriers import (
    carrier_grid,
    carriers,
    effective_rank,
    soft_values,
    whitened_reference,
)
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.frames import frame_bits, read_frame
from assay.methods.panorama_watermark.harmonics import (
    Grid,
    band_vector,
    coefficient_count,
    degrees_and_orders,
    product_grid,
    rotate_coefficients,
    synthesise,
)
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.minimum_energy import energy, solve_dual
from assay.methods.panorama_watermark.quality import ws_psnr
from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama
from assay.methods.panorama_watermark.schedule import BANDS, key_schedule
from assay.methods.panorama_watermark.watermarker import Watermarker

KEY = Key(bytes(range(16)))
LOW = BANDS["low"]
QUICK = Watermarker(KEY, band="low")


@pytest.fixture(scope="module")
def park():
    return panoramas(["park"])["park"]


@pytest.fixture(scope="module")
def low_coefficients(park):
    return luma_coefficients(pixel_scale(park).luma(park), LOW.lmax)


def relative_change(values, reference):
    return np.abs(values - reference).max() / np.abs(reference).max()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), secret=st.binary(min_size=16, max_size=16))
def test_soft_values_are_invariant_to_rounding(low_coefficients, seed, secret):
    """Any rotation, any key: numerator and norm are both integrated exactly."""
    schedule = key_schedule(Key(secret), LOW, 127)
    before = soft_values(low_coefficients, schedule)
    turned = rotate_coefficients(low_coefficients, random_rotation(seed), LOW.lmax)
    assert relative_change(soft_values(turned, schedule), before) < 1e-12


def test_the_grid_is_exact_for_the_norm_too(park):
    """In this band the square of a product has a higher degree than the product with a payload field."""
    band = BANDS["mid"]
    coefficients = luma_coefficients(pixel_scale(park).luma(park), band.lmax)
    schedule = key_schedule(KEY, band, 127)
    turned = rotate_coefficients(coefficients, random_rotation(1), band.lmax)
    before = soft_values(coefficients, schedule)
    assert relative_change(soft_values(turned, schedule), before) < 1e-12
    small = product_grid(band.reference[1], band.reference[1], band.payload[1])
    changed = relative_change(
        soft_values(turned, schedule, small), soft_values(coefficients, schedule, small)
    )
    assert changed > 1e-6


def test_a_grid_for_one_field_aliases(low_coefficients):
    """Products of fields on a grid that is exact for one field only are no invariants any more."""
    schedule = key_schedule(KEY, LOW, 127)
    small = Grid("gauss", LOW.lmax // 2 + 2, 2 * LOW.lmax + 2)
    before = soft_values(low_coefficients, schedule, small)
    turned = rotate_coefficients(low_coefficients, random_rotation(1), LOW.lmax)
    assert relative_change(soft_values(turned, schedule, small), before) > 1e-6


def test_fast_soft_values_are_those_of_the_carriers(park):
    """Signs are the same; sizes differ by each product's share in the payload band, which varies little."""
    band = BANDS["mid"]
    coefficients = luma_coefficients(pixel_scale(park).luma(park), band.lmax)
    schedule = key_schedule(KEY, band, 127)
    vectors = carriers(coefficients, schedule)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
    explicit = vectors @ band_vector(coefficients, band.lmax, *band.payload)
    fast = soft_values(coefficients, schedule)
    assert np.array_equal(np.sign(fast), np.sign(explicit))
    assert np.corrcoef(fast, explicit)[0, 1] > 0.999
    assert effective_rank(vectors @ vectors.T) > 80


def test_triple_integral_is_a_sum_over_the_bispectrum():
    """Integral of (s * f)(t * f)(q * f) = sum of s t q factor b, with all triples up to degree 6."""
    lmax = 6
    rng = np.random.default_rng(0)
    degrees, orders = degrees_and_orders(lmax)
    a = rng.normal(size=coefficient_count(lmax)) + 1j * rng.normal(size=coefficient_count(lmax)) * (
        orders > 0
    )
    s, t, q = rng.choice([-1.0, 1.0], size=(3, lmax + 1))
    grid = product_grid(lmax, lmax, lmax)
    fields = [synthesise(a * filters[degrees], grid, lmax) for filters in (s, t, q)]
    integral = (np.prod(fields, axis=0) * grid.weights[:, None]).sum()
    triples = [
        (i, j, k)
        for i in range(lmax + 1)
        for j in range(lmax + 1)
        for k in range(abs(i - j), min(i + j, lmax) + 1)
        if (i + j + k) % 2 == 0
    ]
    values = bispectrum(a, triples, lmax)
    total = sum(
        s[i] * t[j] * q[k] * product_factor(i, j, k) * b for (i, j, k), b in zip(triples, values, strict=True)
    )
    assert integral == pytest.approx(total, rel=1e-10)


def test_smallest_change_is_optimal():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(40, 300))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = 0.8 * vectors + 0.2 * vectors[0]
    soft, margin = rng.normal(size=40), 0.5
    gram = vectors @ vectors.T
    multipliers = solve_dual(gram, margin - soft)
    change = multipliers @ vectors
    slack = soft + vectors @ change - margin
    assert multipliers.min() >= 0
    assert slack.min() > -1e-3
    assert np.abs(multipliers * slack).max() < 1e-3
    # min ||d||^2 s.t. W d >= h is non-negative least squares (Lawson and Hanson, least distance programming).
    stacked = np.vstack([vectors.T, margin - soft])
    solution, _ = nnls(stacked, np.append(np.zeros(300), 1.0), maxiter=1000)
    residual = stacked @ solution - np.append(np.zeros(300), 1.0)
    expected = -residual[:-1] / residual[-1]
    assert np.linalg.norm(change) == pytest.approx(np.linalg.norm(expected), rel=1e-3)
    assert energy(gram, multipliers) == pytest.approx(change @ change)


def test_inactive_constraints_cost_nothing():
    gram, lack = np.eye(3), np.array([1.0, 1.0, -1.0])
    active = np.array([True, False, True])
    np.testing.assert_allclose(solve_dual(gram, lack, active=active, start=np.ones(3)), [1, 0, 0], atol=1e-9)


NAMES = ["workshop", "park"]


@pytest.fixture(scope="module")
def marked():
    marker = Watermarker(KEY)
    return {name: marker.embed(image, b"hello") for name, image in panoramas(NAMES).items()}


def test_real_panoramas_keep_every_bit_under_rotation(marked):
    """One panorama of each sort, with the hardest of the set; all 18 are in the slow test."""
    marker, originals = Watermarker(KEY), panoramas(NAMES)
    bits = marker.channel_bits(b"hello")
    for seed, (name, result) in enumerate(marked.items()):
        assert result.image.dtype == np.uint8
        assert result.ws_psnr > 38.9
        assert result.ws_psnr == pytest.approx(ws_psnr(originals[name], result.image))
        turned = rotate_panorama(result.image, random_rotation(seed))
        assert np.array_equal(marker.soft_bits(turned, "mid") < 0, bits.astype(bool))
        found = marker.detect(attacks.jpeg(turned, 50))
        assert found.found
        assert (found.payload, found.band) == (b"hello", "mid")
        assert found.fpr < 1e-7
        assert marker.detect(originals[name]).payload is None


def test_mirror_images_keep_every_bit(small_marked):
    soft = QUICK.soft_bits(attacks.flip(small_marked.image), "low")
    assert np.array_equal(soft < 0, QUICK.channel_bits(b"hello").astype(bool))


def test_detection_at_other_sizes(small_marked):
    for factor in (0.5, 1.5):
        assert QUICK.detect(attacks.resize(small_marked.image, factor)).payload == b"hello"


def test_known_payload_test(small_marked):
    image = small_marked.image
    assert QUICK.verify(image, b"hello") < 1e-30
    assert QUICK.verify(image, b"other") > 1e-6
    found = Watermarker(KEY).detect(image, payload=b"other")
    assert not found.found
    assert found.payload == b"hello" or found.payload is None
    assert set(found.bands) == set(BANDS)


def matches_of_keys(image, count, offset=0):
    """Channel bits of b"hello" that agree under keys that the image wasn't marked with."""
    coefficients = luma_coefficients(pixel_scale(image).luma(image), LOW.lmax)
    code, grid = find_code("bch127_64"), carrier_grid(LOW)
    matches, found = [], 0
    for number in range(offset, offset + count):
        key = Key(number.to_bytes(16, "big"))
        schedule = key_schedule.__wrapped__(key, LOW, 127)
        soft = soft_values(coefficients, schedule, grid) * (1.0 - 2.0 * schedule.whitening)
        matches.append(np.count_nonzero((soft < 0) == frame_bits(b"hello", key, code)))
        found += read_frame(soft, key, code) is not None
    return np.array(matches), found


def binomial_fit(matches):
    """The p-value of the chi-square test that matches are those of 127 fair coins."""
    expected = len(matches) * binom.pmf(np.arange(128), 127, 0.5)
    inside = expected > 5
    observed = np.bincount(matches, minlength=128)
    observed = np.append(observed[inside], observed[~inside].sum())
    return chisquare(observed, np.append(expected[inside], expected[~inside].sum())).pvalue


def test_another_key_sees_fair_coins(small, small_marked):
    """Matches of wrong keys are binomial, in a marked and in a clean image, and none reads a payload."""
    for image in (small_marked.image, small):
        matches, found = matches_of_keys(image, 80)
        assert binomial_fit(matches) > 0.01
        assert found == 0


def test_clean_images_hold_nothing(small):
    for number in range(10):
        assert not Watermarker(Key(number.to_bytes(16, "little")), band="low").detect(small).found


def test_two_keys_coexist(small_marked):
    other = Watermarker(Key(bytes(range(100, 116))), band="low")
    twice = other.embed(small_marked.image, b"2nd")
    assert other.detect(twice.image).payload == b"2nd"
    assert QUICK.detect(twice.image).payload == b"hello"


def test_marking_again_with_the_same_key_overwrites(small_marked):
    with pytest.warns(UserWarning, match="overwritten"):
        again = QUICK.embed(small_marked.image, b"new")
    assert QUICK.detect(again.image).payload == b"new"


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x[..., 1],
        lambda x: np.dstack([x, np.full(x.shape[:2], 77, np.uint8)]),
        lambda x: x.astype(np.uint16) * 257,
        lambda x: (x / 255).astype(np.float32),
    ],
    ids=["grey", "rgba", "16-bit", "float"],
)
def test_pixel_types(small, convert):
    image = convert(small)
    result = QUICK.embed(image, 258)
    assert result.image.dtype == image.dtype
    assert result.image.shape == image.shape
    assert QUICK.detect(result.image).payload == b"\1\2"
    if image.ndim == 3 and image.shape[2] == 4:
        assert np.array_equal(result.image[..., 3], image[..., 3])
    assert 41 < result.ws_psnr < 43


@pytest.fixture(scope="module")
def light(park):
    """Linear light behind a photograph, lamps of 3000 times its mean and a black pixel, in half floats."""
    display = np.clip((park / 255.0) ** 2.2, 0.0, 0.97)
    light = 5 * display / (1 - display)
    light[40:44, 60:64] = light[70:73, 300:304] = 3000 * light.mean()
    light[120, 200] = 0.0
    return light.astype(np.float16)


@pytest.fixture(scope="module")
def lit(light):
    return QUICK.embed(light, b"hdr", hdr=True)


def test_hdr_is_marked_by_gains(light, lit):
    assert lit.image.dtype == np.float16
    assert lit.image[120, 200].max() == 0
    ratio = lit.image[light > 0.01].astype(float) / light[light > 0.01]
    assert np.abs(np.log2(ratio)).max() < 1.5
    assert np.abs(np.log2(ratio)).mean() < 0.2
    assert 38.9 < lit.ws_psnr < 42.5
    for exposure in (0.01, 8):
        assert QUICK.detect(exposure * lit.image.astype(np.float32), hdr=True).payload == b"hdr"


@pytest.mark.parametrize("seed", range(3))
def test_hdr_survives_rotation_and_tone_mapping(lit, seed):
    """Lamps don't drown the mark when light is interpolated, and it shows in what screens display."""
    turned = rotate_panorama(lit.image.astype(np.float32), random_rotation(seed))
    assert QUICK.detect(turned, hdr=True).payload == b"hdr"
    shown = np.clip(turned / (turned + np.median(turned) / 0.3), 0, 1) ** (1 / 2.4)
    assert QUICK.detect(attacks.jpeg(np.rint(255 * shown).astype(np.uint8), 80)).payload == b"hdr"


def test_the_largest_half_floats_stay_finite(light):
    bright = np.where(light > np.quantile(light, 0.9995), np.float16(65504), light)
    assert np.isfinite(QUICK.embed(bright, b"hdr", hdr=True).image).all()


def test_texture_mask(park):
    result = Watermarker(KEY, band="low", mask="texture", min_psnr=36).embed(park, b"hello")
    turned = rotate_panorama(result.image, random_rotation(0))
    assert QUICK.detect(turned).payload == b"hello"
    change = np.abs(result.image.astype(int) - park).mean(axis=2)
    assert change[150:200].mean() > 1.5 * change[60:110].mean()  # meadow and sky


def test_longer_codes(small):
    marker = Watermarker(KEY, band="low", code="bch255_131", min_psnr=34)
    result = marker.embed(small, b"13 bytes long")
    assert marker.detect(rotate_panorama(result.image, random_rotation(0))).payload == b"13 bytes long"


def test_covered_nadir(small):
    """A logo over the tripod is left alone, filled in on both sides, and doesn't cost the mark."""
    covered = attacks.cover_pole(small, 25)
    result = QUICK.embed(covered, b"hello")
    assert not result.image[-25:].any()
    found = QUICK.detect(result.image)
    assert found.payload == b"hello"
    assert found.quality["shown"] == pytest.approx(0.953, abs=0.01)


def test_large_covers_are_refused():
    """Detection would leave out what is left of the cover after marking: no image is returned unreadable."""
    covered = panoramas(["venice"])["venice"].copy()
    covered[140:] = 0
    marker = Watermarker(KEY)
    with pytest.raises(InputError, match="one colour around a pole"):
        marker.embed(covered, b"hello")
    shown = np.ones(covered.shape[:2], bool)
    shown[140:] = False
    with pytest.raises(InputError, match="of the sphere is missing"):
        marker.embed(covered, b"hello", valid_mask=shown)


def test_bad_images():
    marker = QUICK
    flat = np.full((256, 512, 3), 128, np.uint8)
    rows = np.random.default_rng(0).integers(0, 255, (256, 1, 1), np.uint8)
    zonal = np.repeat(np.repeat(rows, 512, 1), 3, 2)
    for image, message in (
        (flat, "no direction"),
        (zonal, "no direction"),
        (np.zeros((256, 500, 3), np.uint8), "500 x 256"),
        (np.zeros((100, 200, 3), np.uint8), "at least 200"),
        (np.zeros((256, 512, 5), np.uint8), "shape"),
        (np.zeros((256, 512, 3), np.int64), "int64"),
        (np.full((256, 512), np.nan), "131072 values"),
        (np.full((256, 512), 2.0), "hdr=True"),
    ):
        with pytest.raises(InputError, match=message):
            marker.embed(image, b"x")
    assert not marker.detect(flat).found
    with pytest.raises(InputError, match="black"):
        marker.embed(np.zeros((256, 512)), b"x", hdr=True)


def test_masks_are_checked(park):
    marker = QUICK
    with pytest.raises(InputError, match="shape"):
        marker.embed(park, b"x", valid_mask=np.ones((3, 4), bool))
    with pytest.raises(InputError, match="no pixel"):
        marker.embed(park, b"x", valid_mask=np.zeros((256, 512), bool))
    half = np.ones((256, 512), bool)
    half[:128] = False
    with pytest.raises(InputError, match="50% of the sphere is missing"):
        marker.embed(park, b"x", valid_mask=half)


def test_what_cannot_be_marked_says_what_would():
    hard = attacks.resize(panoramas(["workshop"])["workshop"], 200 / 256)
    strict = {"band": "low", "psnr": 42, "min_psnr": 42}
    with pytest.raises(InputError, match=r"--min-psnr \d\d\.\d or less.* or --allow-weak"):
        Watermarker(KEY, **strict).embed(hard, b"x")
    weak = Watermarker(KEY, **strict, allow_weak=True).embed(hard, b"x")
    assert weak.ws_psnr == pytest.approx(42, abs=0.3)
    assert weak.min_margin < 0.15
    with pytest.raises(InputError, match="no margin at all"):
        Watermarker(KEY, band="low", psnr=48, min_psnr=48, allow_weak=True).embed(hard, b"x")
    blocks = np.where(np.random.default_rng(0).random((25, 50)) < 0.5, 0, 255).astype(np.uint8)
    with pytest.raises(InputError, match="100% of its pixels stand at an end"):
        Watermarker(KEY, band="low", margin=20).embed(np.kron(blocks, np.ones((8, 8), np.uint8)), b"x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"band": "top"}, "band"),
        ({"code": "x"}, "code"),
        ({"engine": "magic"}, "engine"),
        ({"psnr": 5}, "psnr"),
        ({"min_psnr": 80}, "min_psnr"),
        ({"margin": 0}, "margin"),
        ({"mask": "face"}, "mask"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(InputError, match=message):
        Watermarker(KEY, **options)


@pytest.mark.slow
def test_all_panoramas_by_default_settings():
    marker = Watermarker(KEY)
    bits = marker.channel_bits(b"hello")
    quality, right, read, count = [], 0, 0, 0
    for seed, image in enumerate(panoramas().values()):
        result = marker.embed(image, b"hello")
        turned = rotate_panorama(result.image, random_rotation(seed))
        quality.append(result.ws_psnr)
        right += np.count_nonzero((marker.soft_bits(turned, "mid") < 0) == bits)
        for more in range(3):
            turned = rotate_panorama(result.image, random_rotation(100 * seed + more))
            read += marker.detect(attacks.jpeg(turned, 50)).payload == b"hello"
            count += 1
    assert right == 18 * 127
    assert read >= 0.99 * count
    assert np.mean(quality) >= 41


@pytest.mark.slow
def test_no_key_finds_anything_in_clean_panoramas():
    for image in panoramas().values():
        for number in range(50):
            assert not Watermarker(Key(number.to_bytes(16, "little"))).detect(image).found


class ManyKeys:
    """Soft values of one image under many keys, all in the low band.

    Soft values are multilinear in a key's filters. What they multiply, integrals of products of the fields of
    single degrees, belongs to the image and is made once.
    """

    def __init__(self, image):
        coefficients = luma_coefficients(pixel_scale(image).luma(image), LOW.lmax)
        grid = carrier_grid(LOW)
        weights = np.repeat(grid.weights, grid.columns)
        reference, top = whitened_reference(coefficients, LOW)
        first = self.fields(reference, LOW.reference, grid, top)
        payload = self.fields(coefficients, LOW.payload, grid, LOW.lmax)
        self.triples = np.stack([(first * weights * field) @ first.T for field in payload])
        self.pairs = np.triu_indices(len(first))
        squares = first[self.pairs[0]] * first[self.pairs[1]]
        self.squares = (squares * weights) @ squares.T

    @staticmethod
    def fields(coefficients, band, grid, lmax):
        degrees, _ = degrees_and_orders(lmax)
        parts = [coefficients * (degrees == degree) for degree in range(band[0], band[1] + 1)]
        return synthesise(np.stack(parts), grid, lmax).reshape(len(parts), -1)

    def products(self, filters):
        """What a filtered field's square is in products of fields of single degrees."""
        a, b = self.pairs
        return filters[:, a] * filters[:, b] * np.where(a == b, 1, 2)

    def soft_values(self, schedule):
        filtered = np.tensordot(schedule.payload_filters, self.triples, axes=1)
        integrals = schedule.first_filters @ filtered @ schedule.second_filters.T
        squares = self.products(schedule.first_filters) @ self.squares
        norms = np.sqrt(squares @ self.products(schedule.second_filters).T)
        share = np.sqrt(LOW.dimension / (2 * LOW.reference[1] + 1) ** 2)
        chosen = (schedule.first, schedule.second)
        return integrals[(schedule.payload_choice, *chosen)] / (norms[chosen] * share)


@pytest.mark.slow
def test_matches_of_many_keys_are_binomial(small, small_marked):
    code = find_code("bch127_64")
    for image in (small, small_marked.image):
        many, matches, found = ManyKeys(image), [], 0
        coefficients = luma_coefficients(pixel_scale(image).luma(image), LOW.lmax)
        for number in range(1000, 21_000):
            key = Key(number.to_bytes(16, "big"))
            schedule = key_schedule.__wrapped__(key, LOW, 127)
            soft = many.soft_values(schedule)
            if number < 1010:
                np.testing.assert_allclose(soft, soft_values(coefficients, schedule), rtol=1e-8, atol=1e-10)
            soft *= 1.0 - 2.0 * schedule.whitening
            matches.append(np.count_nonzero((soft < 0) == frame_bits(b"hello", key, code)))
            found += read_frame(soft, key, code) is not None
        assert binomial_fit(np.array(matches)) > 0.01
        assert found == 0
