"""Training encoders on real digits: every objective, the folder, resuming, and what is refused."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from transformers import AutoModel

from assay.errors import InputError
from assay.methods.jepa_guidance import encoder_training
from assay.methods.jepa_guidance.augmentations import Augmentation
from assay.methods.jepa_guidance.encoder_training import EncoderTraining, train_encoder
from assay.methods.jepa_guidance.scorer import JEPAScorer
from assay.methods.jepa_guidance.training_loop import CHECKPOINT, Optimisation

SHORT = Optimisation(steps=12, batch_size=16, checkpoint_every=4)


@pytest.fixture(scope="module")
def digits():
    return torch.tensor(load_digits().images[:600] / 16, dtype=torch.float32)[:, None]


def lejepa(optimisation, **changes):
    facts = {"arch": "mlp", "objective": "lejepa", "hidden_size": 12, "width": 64}
    facts |= {"augmentation": Augmentation(noise=0.2), "gaussianity": "sliced-wasserstein"}
    return EncoderTraining(**facts | changes, optimisation=optimisation)


@pytest.mark.parametrize(
    "facts",
    [
        {"objective": "vicreg"},
        {"objective": "simclr", "projector": 16},
        {"objective": "lejepa"},
        {"objective": "ijepa", "arch": "vit", "patch_size": 2, "width": 16},
    ],
    ids=lambda facts: facts["objective"],
)
def test_every_objective_trains_and_lowers_its_loss(digits, facts, tmp_path):
    training = EncoderTraining(
        **{"width": 16, "hidden_size": 12} | facts, optimisation=Optimisation(steps=60, batch_size=32)
    )
    encoder = train_encoder(digits, training, out=tmp_path / "encoder", device="cpu")
    record = json.loads((tmp_path / "encoder" / "training.json").read_text())
    assert record["history"][-1]["loss"] < 0.95 * record["history"][0]["loss"]
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert encoder.config.objective == facts["objective"]
    eigenvalues = record["covariance_eigenvalues"]
    assert len(eigenvalues) == encoder.config.hidden_size
    covariance = np.cov(encoder.embed(digits).numpy().T)
    assert eigenvalues[0] == pytest.approx(np.linalg.eigvalsh(covariance)[-1], rel=1e-4)


def test_the_folder_is_loaded_by_transformers_with_equal_scores(digits, tmp_path):
    encoder = train_encoder(digits, lejepa(SHORT), out=tmp_path / "encoder", device="cpu")
    names = {path.name for path in (tmp_path / "encoder").iterdir()}
    assert names == {"config.json", "model.safetensors", "preprocessor_config.json", "training.json"}
    loaded = AutoModel.from_pretrained(tmp_path / "encoder")
    assert torch.equal(loaded.embed(digits), encoder.embed(digits))
    config = encoder.config
    ours = JEPAScorer(encoder, mean=config.image_mean, std=config.image_std, image_size=8)
    theirs = JEPAScorer.from_pretrained(tmp_path / "encoder")
    torch.testing.assert_close(theirs.score(digits[:9]), ours.score(digits[:9]), atol=1e-5, rtol=0)


def test_lejepa_learns_a_gaussian_embedding_that_tells_digits_apart(digits):
    encoder = train_encoder(
        digits,
        lejepa(Optimisation(steps=150, batch_size=96, learning_rate=3e-3)),
        device="cpu",
    )
    embeddings = encoder.embed(digits)
    # Directions become Gaussian one after another; after 150 steps half of them have.
    leading = torch.linalg.eigvalsh(torch.cov(embeddings.T))[-5:]
    assert 1.0 < leading.min() < leading.max() < 2.2
    labels = load_digits().target[:600]
    neighbours = KNeighborsClassifier(5).fit(embeddings[:400], labels[:400])
    assert neighbours.score(embeddings[400:], labels[400:]) > 0.6


class Interrupted:
    """Raises in the given call of the loss, as Ctrl-C would."""

    def __init__(self, monkeypatch, at):
        self.calls, self.at = 0, at
        original = encoder_training.TwoViews.forward

        def forward(objective, batch, generator):
            self.calls += 1
            if self.calls == self.at:
                raise KeyboardInterrupt
            return original(objective, batch, generator)

        monkeypatch.setattr(encoder_training.TwoViews, "forward", forward)


def test_an_interrupted_training_continues_to_the_same_encoder(digits, tmp_path, monkeypatch):
    whole = train_encoder(digits, lejepa(SHORT), out=tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patched:
        Interrupted(patched, at=7)
        with pytest.raises(KeyboardInterrupt):
            train_encoder(digits, lejepa(SHORT), out=tmp_path / "part", device="cpu")
    assert {path.name for path in (tmp_path / "part").iterdir()} == {CHECKPOINT}
    with monkeypatch.context() as patched:
        counted = Interrupted(patched, at=None)
        resumed = train_encoder(digits, lejepa(SHORT), out=tmp_path / "part", device="cpu")
    assert counted.calls == 12 - 4
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    for name in ("config.json", "model.safetensors", "training.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes()


def test_a_finished_training_is_loaded_and_another_refused(digits, tmp_path, monkeypatch):
    out = tmp_path / "encoder"
    first = train_encoder(digits, lejepa(SHORT), out=out, device="cpu")
    with monkeypatch.context() as patched:
        Interrupted(patched, at=1)
        again = train_encoder(digits, lejepa(SHORT), out=out, device="cpu")
    assert torch.equal(first.embed(digits), again.embed(digits))
    assert not again.training
    with pytest.raises(InputError, match="another hidden_size: choose another folder"):
        train_encoder(digits, lejepa(SHORT, hidden_size=13), out=out, device="cpu")
    with pytest.raises(InputError, match="another data"):
        train_encoder(digits[1:], lejepa(SHORT), out=out, device="cpu")
    # What changes no result may change.
    more_often = Optimisation(steps=12, batch_size=16, checkpoint_every=1)
    assert torch.equal(train_encoder(digits, lejepa(more_often), out=out).embed(digits), first.embed(digits))


def test_a_folder_of_something_else_is_left_alone(digits, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds no training of assay"):
        train_encoder(digits, lejepa(SHORT), out=tmp_path, device="cpu")
    with pytest.raises(InputError, match="is a file"):
        train_encoder(digits, lejepa(SHORT), out=tmp_path / "thesis.txt", device="cpu")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_collapsed_encoder_stops_the_training_with_its_deviation(digits, tmp_path):
    # Nearly all of the weight on agreement: the easiest agreement is a constant.
    collapsing = lejepa(
        Optimisation(steps=120, batch_size=32, learning_rate=0.01),
        gaussian_weight=1e-6,
        augmentation=Augmentation(noise=0.5),
    )
    with pytest.raises(InputError, match=r"collapsed: the embedding's standard deviation is 0\.0"):
        train_encoder(digits, collapsing, out=tmp_path / "encoder", device="cpu")
    assert not (tmp_path / "encoder").exists()


def broken(digits, value):
    images = digits.clone()
    images[3, 0, 2, 2] = value
    return images


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda images: images[:199], "at least 200 images, got 199"),
        (lambda images: images[:3].repeat(100, 1, 1, 1), "of the 300 given, 3 are different"),
        (lambda images: broken(images, float("nan")), "not finite"),
        (lambda images: broken(images, 7.0), r"pixels must be in \[0, 1\], got 0 to 7"),
        (lambda images: images[..., :5], "size, size"),
        (lambda images: images[:, 0], "size, size"),
    ],
)
def test_images_that_nothing_can_be_learnt_from_are_refused(digits, change, message):
    with pytest.raises(InputError, match=message):
        train_encoder(change(digits), lejepa(SHORT), device="cpu")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"objective": "byol"}, "none of vicreg, simclr, ijepa, lejepa"),
        ({"objective": "ijepa"}, "use the architecture vit"),
        ({"augmentation": "wild"}, "none of geometric"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"gaussianity": "ks"}, "neither epps-pulley nor"),
        ({"gaussian_weight": 1}, "between 0 and 1"),
        ({"projector": -1}, "projector"),
    ],
)
def test_bad_settings_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        EncoderTraining(**facts)
