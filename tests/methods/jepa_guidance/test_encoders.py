"""Encoders of any output, and from folders."""

import json
import sys

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    IJepaConfig,
    IJepaModel,
)
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from assay.errors import InputError, MissingDependencyError
from assay.methods.jepa_guidance import JEPAScorer
from assay.methods.jepa_guidance.calibration import Calibration
from assay.methods.jepa_guidance.encoders import IMAGENET_MEAN, EmbeddingEncoder, load_encoder

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


class Returning(nn.Module):
    """A model that returns what it is told to."""

    def __init__(self, output) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor):
        return self.output


VECTORS = torch.arange(6.0).view(2, 3)
TOKENS = torch.arange(24.0).view(2, 4, 3)
GRID = torch.arange(48.0).view(2, 3, 2, 4)


@pytest.mark.parametrize(
    ("output", "pooling", "expected"),
    [
        (VECTORS, "auto", VECTORS),
        ((VECTORS, TOKENS), "auto", VECTORS),
        (TOKENS, "auto", TOKENS.mean(dim=1)),
        (TOKENS, "mean", TOKENS.mean(dim=1)),
        (TOKENS, "cls", TOKENS[:, 0]),
        ([TOKENS], "cls", TOKENS[:, 0]),
        (GRID, "auto", GRID.mean(dim=(2, 3))),
        (BaseModelOutput(last_hidden_state=TOKENS), "auto", TOKENS.mean(dim=1)),
        (BaseModelOutputWithPooling(last_hidden_state=TOKENS, pooler_output=VECTORS), "auto", VECTORS),
        (BaseModelOutputWithPooling(last_hidden_state=TOKENS, pooler_output=VECTORS), "pooler", VECTORS),
        (BaseModelOutputWithPooling(last_hidden_state=TOKENS, pooler_output=VECTORS), "cls", TOKENS[:, 0]),
    ],
)
def test_whatever_an_encoder_returns_becomes_a_vector_each(output, pooling, expected):
    found = EmbeddingEncoder(Returning(output), pooling)(torch.zeros(2, 1, 2, 2))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("output", "pooling", "message"),
    [
        (None, "auto", "NoneType \\(no tensor\\)"),
        (torch.zeros(2, 3, 4, 5, 6), "auto", r"\(2, 3, 4, 5, 6\)"),
        (VECTORS, "cls", "choose another pooling"),
        (BaseModelOutput(last_hidden_state=TOKENS), "pooler", r"last_hidden_state \(2, 4, 3\)"),
        (torch.zeros(3, 4), "auto", "each of 2 images"),
    ],
)
def test_an_output_without_a_vector_lists_its_shapes(output, pooling, message):
    with pytest.raises(InputError, match=message):
        EmbeddingEncoder(Returning(output), pooling)(torch.zeros(2, 1, 2, 2))


def folder_of(model, tmp_path, preprocessor: dict | None = None):
    torch.manual_seed(0)
    model.save_pretrained(tmp_path / "encoder")
    if preprocessor is not None:
        (tmp_path / "encoder" / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return tmp_path / "encoder"


def dinov2() -> Dinov2Model:
    torch.manual_seed(0)
    return Dinov2Model(Dinov2Config(**SMALL, image_size=28, patch_size=14))


def test_a_folder_of_transformers_scores_as_the_model_itself(tmp_path):
    model = dinov2()
    folder = folder_of(model, tmp_path, {"image_mean": [0.4] * 3, "image_std": [0.3] * 3, "size": 28})
    random_state = torch.random.get_rng_state()
    scorer = JEPAScorer.from_pretrained(folder)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert scorer.preprocessing.mean == (0.4,) * 3
    assert scorer.image_size == 28
    assert not scorer.published
    batch = torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    direct = JEPAScorer(model, mean=[0.4] * 3, std=[0.3] * 3, image_size=28)
    torch.testing.assert_close(scorer.score(batch), direct.score(batch), rtol=1e-5, atol=1e-5)
    model.eval()
    torch.testing.assert_close(
        scorer.embed(batch), model((batch - 0.4) / 0.3).pooler_output.detach(), rtol=1e-4, atol=1e-5
    )


def test_without_a_preprocessor_imagenets_values_are_taken(tmp_path):
    scorer = JEPAScorer.from_pretrained(folder_of(dinov2(), tmp_path))
    assert scorer.preprocessing.mean == IMAGENET_MEAN
    assert scorer.image_size == 224
    assert JEPAScorer.from_pretrained(tmp_path / "encoder", image_size=28).image_size == 28


def test_a_calibration_comes_with_its_folder(tmp_path):
    folder = folder_of(dinov2(), tmp_path)
    calibration = Calibration(
        sign=-1, rho=-0.7, rho_low=-0.8, rho_high=-0.6, auroc=None, auroc_low=None, auroc_high=None,
        images=100, neighbours=5, space="pca", include_prior=False, image_size=28,
    )  # fmt: skip
    calibration.save(folder)
    scorer = JEPAScorer.from_pretrained(folder)
    assert scorer.calibration == calibration
    assert scorer.rare_sign() == -1
    (folder / "jepa_calibration.json").write_text("{")
    with pytest.raises(InputError, match="not a calibration"):
        JEPAScorer.from_pretrained(folder)


def test_a_model_with_fixed_positions_interpolates_them_for_another_size(tmp_path):
    torch.manual_seed(0)
    model = IJepaModel(IJepaConfig(**SMALL, image_size=32, patch_size=8), add_pooling_layer=False)
    scorer = JEPAScorer.from_pretrained(folder_of(model, tmp_path), image_size=16)
    assert scorer.embed(torch.rand(2, 3, 16, 16)).shape == (2, 16)
    assert scorer.surrogate(torch.rand(1, 3, 16, 16), k=3).isfinite().all()


def test_of_a_model_of_images_and_text_the_images_are_taken(tmp_path):
    torch.manual_seed(0)
    tower = {**SMALL, "intermediate_size": 16}
    model = CLIPModel(CLIPConfig(
        vision_config={**tower, "image_size": 16, "patch_size": 8},
        text_config={**tower, "vocab_size": 10, "max_position_embeddings": 8},
    ))  # fmt: skip
    scorer = JEPAScorer.from_pretrained(folder_of(model, tmp_path), image_size=16)
    assert scorer.embed(torch.rand(2, 3, 16, 16)).shape == (2, 16)


def test_what_is_no_encoder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"config\.json is missing"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(tmp_path)
    with pytest.raises(InputError, match=r"no/such-encoder cannot be loaded"):
        load_encoder("no/such-encoder")
    (tmp_path / "bad").mkdir()
    folder = folder_of(dinov2(), tmp_path / "bad", {})
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load_encoder(folder)
    (folder / "model.safetensors").write_bytes(b"torn")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(folder)


def test_an_encoder_of_timm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match="pip install timm"):
        load_encoder("timm/vit_small_patch14_reg4_dinov2")
