"""Views: what each change does to an image, and that its strength and seed alone decide."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.jepa_guidance.augmentations import PRESETS, Augmentation, augment_images


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def photos():
    return torch.rand(6, 3, 16, 16, generator=seeded(1))


def test_no_strength_changes_nothing(photos):
    assert torch.equal(augment_images(photos, PRESETS["none"], seeded()), photos)


def test_a_certain_mirror_mirrors(photos):
    mirrored = augment_images(photos, Augmentation(flip=1), seeded())
    torch.testing.assert_close(mirrored, photos.flip(-1), atol=1e-5, rtol=0)


def test_rotation_moves_a_line_by_at_most_its_angle():
    line = torch.zeros(64, 1, 33, 33)
    line[:, :, 16] = 1
    turned = augment_images(line, Augmentation(rotation=20), seeded())
    rows = torch.arange(33.0)[:, None]
    # Where the line crosses the 6th column from the right, 10 pixels from the middle.
    column = turned[:, 0, :, 26]
    heights = (column * rows[:, 0]).sum(1) / column.sum(1) - 16
    angles = torch.rad2deg(torch.atan(heights / 10))
    assert angles.abs().max() < 20.5
    assert angles.std() > 5


def test_a_shift_moves_by_its_part_of_the_side():
    dot = torch.zeros(200, 1, 21, 21)
    dot[:, :, 10, 10] = 1
    moved = augment_images(dot, Augmentation(shift=0.2), seeded())[:, 0]
    places = torch.arange(21.0)
    offsets = (moved.sum(1) * places).sum(1) / moved.sum((1, 2)) - 10
    assert 3.5 < offsets.abs().max() <= 0.2 * 21 + 1e-3


def test_a_crop_shows_part_of_the_image_enlarged():
    ramp = torch.linspace(0, 1, 32).expand(50, 1, 32, 32).contiguous()
    cropped = augment_images(ramp, Augmentation(crop=0.25), seeded())
    spans = cropped[:, 0, 16, -1] - cropped[:, 0, 16, 0]
    # A quarter of the area is half of the side.
    assert 0.45 < spans.min() < 0.6
    assert spans.max() < 1.01


def test_noise_has_its_deviation_and_is_not_clipped():
    noisy = augment_images(torch.zeros(50, 1, 20, 20), Augmentation(noise=0.3), seeded())
    assert noisy.std() == pytest.approx(0.3, rel=0.02)
    assert noisy.min() < -0.5


def test_blur_keeps_flat_images_and_means_but_not_edges(photos):
    flat = torch.full((2, 3, 16, 16), 0.4)
    blur = Augmentation(blur=0.1)
    torch.testing.assert_close(augment_images(flat, blur, seeded()), flat)
    blurred = augment_images(photos, blur, seeded())
    assert blurred.diff(dim=-1).abs().mean() < 0.7 * photos.diff(dim=-1).abs().mean()
    assert blurred.mean() == pytest.approx(float(photos.mean()), abs=0.02)


def test_dropped_colour_is_luma(photos):
    grey = augment_images(photos, Augmentation(grey=1), seeded())
    luma = 0.299 * photos[:, 0] + 0.587 * photos[:, 1] + 0.114 * photos[:, 2]
    torch.testing.assert_close(grey, luma[:, None].expand(-1, 3, -1, -1), atol=1e-6, rtol=0)


def test_brightness_and_contrast_stay_in_range(photos):
    changed = augment_images(photos, Augmentation(brightness=0.9, contrast=0.9), seeded())
    assert 0 <= changed.min() <= changed.max() <= 1
    assert not torch.allclose(changed, photos)


@pytest.mark.parametrize("channels", [1, 3])
@settings(max_examples=12, deadline=None)
@given(preset=st.sampled_from(sorted(PRESETS)), seed=st.integers(0, 2**32), side=st.integers(4, 20))
def test_presets_keep_shapes_and_repeat_for_a_seed(channels, preset, seed, side):
    images = torch.rand(3, channels, side, side, generator=seeded(2))
    state = torch.random.get_rng_state()
    first = augment_images(images, PRESETS[preset], seeded(seed))
    assert first.shape == images.shape
    assert torch.isfinite(first).all()
    assert torch.equal(first, augment_images(images, PRESETS[preset], seeded(seed)))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "strengths",
    [{"rotation": 200}, {"noise": -0.1}, {"crop": 0}, {"scale": 1}, {"flip": 1.5}, {"blur": float("nan")}],
)
def test_strengths_out_of_range_are_refused(strengths):
    with pytest.raises(InputError, match=next(iter(strengths))):
        Augmentation(**strengths)
