"""The image sets of the study: real digits, thinned as the documentation says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.jepa_guidance.datasets import (
    GENERATOR_RARE,
    WORLD_RARE,
    biased,
    captions,
    digits,
    mnist,
    thin,
)


def test_digits_are_images_in_the_unit_interval():
    found = digits()
    assert found.images.shape == (1797, 1, 8, 8)
    assert found.images.dtype == np.float32
    assert found.images.min() == 0.0
    assert found.images.max() == 1.0


def test_mnist_keeps_the_ink_of_the_digits():
    found = mnist()
    assert found.images.shape == (5000, 1, 12, 12)
    assert np.bincount(found.labels).tolist() == [500] * 10
    assert 0.0 <= found.images.min() < found.images.max() <= 1.0
    # A one has less ink than a zero.
    ink = found.images.mean(axis=(1, 2, 3))
    assert ink[found.labels == 1].mean() < 0.6 * ink[found.labels == 0].mean()


def test_world_and_generator_are_thinned_differently():
    found = biased("digits")
    real, world, generator = (
        np.bincount(part.labels, minlength=10) for part in (found.real, found.world, found.generator)
    )
    for digit in range(10):
        assert world[digit] == (round(0.1 * real[digit]) if digit in WORLD_RARE else real[digit])
        assert generator[digit] == (round(0.2 * real[digit]) if digit in GENERATOR_RARE else real[digit])
    held_out = np.bincount(found.held_out.labels)
    assert (real + held_out == np.bincount(digits().labels)).all()


def test_no_image_is_both_held_out_and_trained_on():
    found = biased("digits")
    trained = {image.tobytes() for image in found.real.images}
    assert sum(image.tobytes() in trained for image in found.held_out.images) == 0


def test_a_set_is_the_same_every_time_and_differs_between_seeds():
    assert (biased("digits").world.images == biased("digits", 0).world.images).all()
    assert not np.array_equal(biased("digits").held_out.labels, biased("digits", 1).held_out.labels)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_thinning_keeps_a_share_of_every_class(labels, share):
    rows = np.array(labels)
    kept = thin(rows, {0: share}, np.random.default_rng(0))
    assert (np.diff(kept) > 0).all()
    for label in np.unique(rows):
        count = (rows == label).sum()
        expected = max(1, round(share * count)) if label == 0 and share < 1 else count
        assert (rows[kept] == label).sum() == expected


def test_unknown_sets_and_shares_are_refused():
    with pytest.raises(InputError, match="digits, mnist"):
        biased("cats")
    with pytest.raises(InputError, match=r"share of 1\.5"):
        thin(np.array([0, 1]), {0: 1.5}, np.random.default_rng(0))


def test_captions_name_the_digit():
    assert captions(7, ("a handwritten {}",)) == ["a handwritten seven"]
    assert len({*captions(0), *captions(1)}) == 8
