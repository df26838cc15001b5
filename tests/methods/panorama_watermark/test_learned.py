"""The learned engine and the PyTorch modules: invariant by construction, and trainable."""

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.methods.panorama_watermark.data import panoramas
from assay.methods.panorama_watermark.harmonics import rotate_coefficients
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.learned import (
    LearnedEngine,
    host_features,
    train_engine,
)
from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
from assay.methods.panorama_watermark.rotations import random_rotation, rotate_panorama
from assay.methods.panorama_watermark.schedule import BANDS, key_schedule
from assay.methods.panorama_watermark.torch_invariants import (
    BispectralInvariants,
    RandomRotate360,
    rotate_tensor,
)
from assay.methods.panorama_watermark.watermarker import Watermarker

KEY = Key(bytes(range(16)))
LOW = BANDS["low"]


@pytest.fixture(scope="module")
def images():
    return list(panoramas(["park", "venice", "lab"]).values())


@pytest.fixture(scope="module")
def trained(images):
    return train_engine(images, KEY, band="low", steps=150, batch=8, ws_psnr=34, seed=1)


def test_features_are_invariant_and_directions_turn_with_the_image(images):
    luma = pixel_scale(images[0]).luma(images[0])
    coefficients = luma_coefficients(luma, LOW.lmax)
    schedule = key_schedule(KEY, LOW, 127)
    before = host_features(coefficients, schedule)
    turned = rotate_coefficients(coefficients, random_rotation(0), LOW.lmax)
    after = host_features(turned, schedule)
    scale = np.abs(before.values).max()
    np.testing.assert_allclose(after.values, before.values, atol=1e-10 * scale)
    np.testing.assert_allclose(after.spectrum, before.spectrum, atol=1e-10)
    np.testing.assert_allclose(
        after.directions @ after.directions.T, before.directions @ before.directions.T, atol=1e-9
    )


def test_training_learns(trained):
    _, history = trained
    assert history[-1]["loss"] < history[0]["loss"] - 0.1
    assert history[-1]["bit_accuracy"] > 0.75


def test_embedding_at_the_asked_fidelity_survives_rotation(trained, images):
    engine, _ = trained
    marker = Watermarker(KEY, engine=engine, psnr=34)
    bits = marker.channel_bits(b"hello")
    result = marker.embed(images[1], b"hello")
    assert result.ws_psnr == pytest.approx(34, abs=0.5)
    turned = rotate_panorama(result.image, random_rotation(2))
    straight, after = (np.mean((marker.soft_bits(x, "low") < 0) == bits) for x in (result.image, turned))
    assert straight > 0.7
    assert after > straight - 0.06


def test_engines_are_saved_without_the_key(trained, images, tmp_path):
    engine, _ = trained
    engine.save(tmp_path / "engine")
    loaded = LearnedEngine.load(tmp_path / "engine")
    first, second = (Watermarker(KEY, engine=e).soft_bits(images[0], "low") for e in (engine, loaded))
    assert np.array_equal(first, second)
    content = b"".join(path.read_bytes() for path in (tmp_path / "engine").iterdir())
    assert bytes(range(16)) not in content
    with pytest.raises(InputError, match="key"):
        Watermarker(Key(bytes(16)), engine=loaded)
    with pytest.raises(InputError, match="code"):
        Watermarker(KEY, engine=loaded, code="bch255_131")
    with pytest.raises(InputError, match="band"):
        Watermarker(KEY, engine=loaded, band="high")
    (tmp_path / "engine/config.json").write_text('{"band": "mid", "code": "bch127_64", "key_id": "0"}')
    with pytest.raises(InputError, match="not an engine"):
        LearnedEngine.load(tmp_path / "engine")
    with pytest.raises(InputError, match="positive"):
        train_engine(images, KEY, steps=0)


def test_training_is_deterministic(images):
    states = [
        train_engine(images[:1], KEY, band="low", steps=3, batch=2, seed=5)[0].decoder.state_dict()
        for _ in range(2)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_bispectral_invariants():
    """The same for a turned field, differentiable, and what the definition says."""
    from assay.methods.panorama_watermark.harmonics import (
        analyse,
        degrees_and_orders,
        image_grid,
        synthesise,
    )

    lmax, height = 8, 20
    module = BispectralInvariants(height, lmax, 4, dtype=torch.float64)
    field = np.random.default_rng(0).normal(size=(height, 2 * height))
    coefficients = analyse(field, image_grid(height), lmax)
    smooth = synthesise(coefficients, image_grid(height), lmax)
    turned = synthesise(rotate_coefficients(coefficients, random_rotation(1), lmax), image_grid(height), lmax)
    images = torch.tensor(np.stack([smooth, turned]), requires_grad=True)
    values = module(images)
    assert values.shape == (2, 4)
    np.testing.assert_allclose(values[0].detach(), values[1].detach(), rtol=1e-9)
    degrees, _ = degrees_and_orders(lmax)
    grid = module.grid
    fields = [synthesise(coefficients * module.filters[k, 2].numpy()[degrees], grid, lmax) for k in range(3)]
    expected = (np.prod(fields, axis=0) * grid.weights[:, None]).sum()
    assert values[0, 2].item() == pytest.approx(expected, rel=1e-9)
    values.sum().backward()
    assert images.grad.abs().min() > 0
    with pytest.raises(InputError, match="at least 9 rows"):
        BispectralInvariants(8, 8, 1)
    with pytest.raises(InputError, match="are needed"):
        module(torch.zeros(3, 5))


def test_random_rotations(images):
    image = torch.tensor(np.moveaxis(images[0], -1, 0), dtype=torch.float32)
    rotation = random_rotation(4)
    expected = rotate_panorama(images[0].astype(np.float32), rotation)
    ours = rotate_tensor(image, torch.tensor(rotation))
    np.testing.assert_allclose(np.moveaxis(ours.numpy(), 0, -1), expected, atol=0.05)
    first, second = RandomRotate360(3)(image), RandomRotate360(3)(image)
    assert torch.equal(first, second)
    assert (first - image).abs().mean() > 5
    with pytest.raises(InputError, match="H x 2H"):
        RandomRotate360()(image[:, :100])
