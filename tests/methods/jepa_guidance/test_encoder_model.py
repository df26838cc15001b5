"""The encoders: shapes, differentiability, independence of batch mates, and transformers' own loading."""

import pytest
import torch
from transformers import AutoConfig, AutoImageProcessor, AutoModel

from assay.errors import InputError
from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig
from assay.methods.jepa_guidance.encoder_model import JEPAEncoder
from assay.methods.jepa_guidance.scorer import JEPAScorer

ARCHITECTURES = ["conv", "vit", "mlp"]


def make(arch, size=8, channels=1, d=12, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return JEPAEncoder(
            JEPAEncoderConfig(
                arch=arch,
                image_size=size,
                num_channels=channels,
                hidden_size=d,
                width=16,
                patch_size=size // 4,
            )
        ).eval()


@pytest.fixture
def images():
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 3)])
def test_shapes(arch, size, channels):
    encoder = make(arch, size, channels)
    output = encoder(torch.randn(3, channels, size, size))
    assert output.pooler_output.shape == (3, 12)
    assert output.last_hidden_state.shape[0] == 3
    assert output.last_hidden_state.ndim == 3
    features, embedding = encoder(torch.randn(3, channels, size, size), return_dict=False)
    assert features.shape == output.last_hidden_state.shape
    assert embedding.shape == (3, 12)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_batch_mate_changes_nothing(arch, images):
    encoder = make(arch)
    alone = torch.cat([encoder.embed(image[None]) for image in images])
    torch.testing.assert_close(encoder.embed(images), alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_forward_and_reverse_jacobians_agree_and_have_a_derivative(arch, images):
    encoder = make(arch).double()

    def embedding(image):
        return encoder.embed(image[None])[0]

    image = images[0].double()
    reverse = torch.func.jacrev(embedding)(image)
    torch.testing.assert_close(reverse, torch.func.jacfwd(embedding)(image))
    curvature = torch.func.grad(lambda x: torch.func.jacrev(embedding)(x).square().sum())(image)
    assert curvature.abs().max() > 1e-8


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_transformers_loads_the_folder_with_equal_scores(arch, images, tmp_path):
    encoder = make(arch)
    encoder.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert type(AutoConfig.from_pretrained(tmp_path)) is JEPAEncoderConfig
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is JEPAEncoder
    assert torch.equal(loaded.embed(images), encoder.embed(images))
    config = encoder.config
    before = JEPAScorer(encoder, mean=config.image_mean, std=config.image_std, image_size=8)
    torch.testing.assert_close(
        JEPAScorer.from_pretrained(tmp_path).score(images), before.score(images), atol=1e-5, rtol=0
    )


def test_preprocessing_is_that_of_transformers(images, tmp_path):
    import json

    import numpy as np

    from assay.methods.jepa_guidance.encoder_training import preprocessing

    encoder = make("conv", channels=3)
    facts = preprocessing(encoder.config)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts))
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = (255 * images[0]).round().byte().expand(3, -1, -1)
    processed = processor(np.array(pixels.permute(1, 2, 0)), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(processed[0], encoder.normalise(pixels.float()[None] / 255)[0])


def test_images_of_another_shape_are_refused(images):
    with pytest.raises(InputError, match=r"\(batch, 3, 8, 8\), got \(5, 1, 8, 8\)"):
        make("conv", channels=3)(images)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"arch": "resnet"}, "none of conv, vit, mlp"),
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"arch": "conv", "width": 12}, "multiple of 8"),
        ({"arch": "vit", "image_size": 30, "patch_size": 4}, "use 28 or 32"),
        ({"arch": "vit", "image_size": 3, "patch_size": 4}, "use 4"),
        ({"arch": "vit", "width": 30, "num_heads": 4}, "multiple of its 4 heads"),
        ({"arch": "vit", "projection": False, "width": 16, "hidden_size": 8}, "width 16, not 8"),
    ],
)
def test_bad_shapes_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        JEPAEncoderConfig(**facts)
