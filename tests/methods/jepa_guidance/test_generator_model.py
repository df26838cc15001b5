"""The denoisers: conditions and their absence, independence of batch mates, and diffusers' own loading."""

import pytest
import torch
from diffusers.models.unets.unet_2d import UNet2DModel

from assay.errors import InputError
from assay.methods.jepa_guidance.generator_model import PixelMLP, PixelUNet, make_denoiser

CONDITIONS = [{}, {"num_classes": 3}, {"text_dim": 5}]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make(arch, size=8, channels=1, **condition):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make_denoiser(
            arch, image_size=size, num_channels=channels, width=16, depth=2, **condition
        ).eval()


def given(condition, batch=4):
    if "num_classes" in condition:
        return {"class_labels": torch.arange(batch) % 3}
    if "text_dim" in condition:
        return {"encoder_hidden_states": torch.randn(batch, 5, generator=seeded(1))}
    return {}


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
@pytest.mark.parametrize(("arch", "size", "channels"), [("mlp", 8, 1), ("unet", 8, 1), ("unet", 28, 3)])
def test_shape_batch_mates_and_loading(arch, size, channels, condition, tmp_path):
    denoiser = make(arch, size, channels, **condition)
    x = torch.randn(4, channels, size, size, generator=seeded())
    times = torch.tensor([0, 10, 500, 999])
    rows = given(condition)
    with torch.no_grad():
        predicted = denoiser(x, times, **rows).sample
        assert predicted.shape == x.shape
        for i in range(4):
            alone = denoiser(x[i : i + 1], times[i], **{name: row[i : i + 1] for name, row in rows.items()})
            torch.testing.assert_close(alone.sample[0], predicted[i], atol=1e-5, rtol=1e-4)
        (plain,) = denoiser(x, times, **rows, return_dict=False)
        assert torch.equal(plain, predicted)
        denoiser.save_pretrained(tmp_path)
        loaded = type(denoiser).from_pretrained(tmp_path, use_safetensors=True)
        assert torch.equal(loaded(x, times, **rows).sample, predicted)


def test_an_unconditional_unet_is_diffusers_own():
    assert type(make("unet")) is UNet2DModel
    assert type(make("unet", num_classes=3)) is PixelUNet
    assert type(make("mlp")) is PixelMLP


@pytest.mark.parametrize("arch", ["mlp", "unet"])
def test_no_condition_is_the_last_class_or_a_text_of_zeros(arch):
    x = torch.randn(2, 1, 8, 8, generator=seeded())
    classes, texts = make(arch, num_classes=3), make(arch, text_dim=5)
    free = classes(x, 7).sample
    torch.testing.assert_close(classes(x, 7, class_labels=torch.tensor([3, 3])).sample, free)
    assert not torch.allclose(classes(x, 7, class_labels=torch.tensor([0, 1])).sample, free)
    free = texts(x, 7).sample
    torch.testing.assert_close(texts(x, 7, encoder_hidden_states=torch.zeros(2, 5)).sample, free)
    rows = torch.randn(2, 5, generator=seeded(2))
    torch.testing.assert_close(
        texts(x, 7, encoder_hidden_states=rows[:, None]).sample,
        texts(x, 7, encoder_hidden_states=rows).sample,
    )


@pytest.mark.parametrize("arch", ["mlp", "unet"])
def test_conditions_that_were_not_trained_are_refused(arch):
    x = torch.randn(2, 1, 8, 8, generator=seeded())
    with pytest.raises(InputError, match="knows no classes"):
        make(arch, text_dim=5)(x, 1, class_labels=torch.tensor([0, 1]))
    with pytest.raises(InputError, match="not trained with text"):
        make(arch, num_classes=3)(x, 1, encoder_hidden_states=torch.zeros(2, 5))
    for wrong in ([0, 4], [-1, 0]):
        with pytest.raises(InputError, match="class labels must be from 0 to 3"):
            make(arch, num_classes=3)(x, 1, class_labels=torch.tensor(wrong))


@pytest.mark.parametrize(
    ("arch", "facts", "message"),
    [
        ("gan", {}, "neither unet nor mlp"),
        ("unet", {"width": 12}, "multiple of 8"),
        ("unet", {"image_size": 30}, "use 28 or 32"),
        ("unet", {"image_size": 7}, "use 6 or 8"),
        ("mlp", {"num_classes": 3, "text_dim": 5}, "not on both"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arch, facts, message):
    with pytest.raises(InputError, match=message):
        make_denoiser(arch, **{"image_size": 8, "num_channels": 1, "width": 16, "depth": 2} | facts)


def test_a_denoiser_is_differentiable_in_its_image():
    denoiser = make("mlp").double()
    x = torch.randn(1, 1, 8, 8, generator=seeded(), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: denoiser(x, 5).sample, (x,))
