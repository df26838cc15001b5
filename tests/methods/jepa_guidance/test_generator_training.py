"""Training generators on real digits: the loss, the average, conditions, the folder, resuming, refusals."""

import json

import pytest
import torch
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.pipelines.ddpm.pipeline_ddpm import DDPMPipeline
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from sklearn.datasets import load_digits
from transformers import BertConfig, BertModel, BertTokenizer

from assay.errors import InputError
from assay.methods.jepa_guidance import generator_training
from assay.methods.jepa_guidance.generator_pipeline import (
    PixelDiffusionPipeline,
    embed_sentences,
    load_generator,
)
from assay.methods.jepa_guidance.generator_training import (
    Denoising,
    GeneratorTraining,
    make_pipeline,
    make_scheduler,
    train_generator,
)
from assay.methods.jepa_guidance.guided_sampling import guided_sample
from assay.methods.jepa_guidance.training_loop import CHECKPOINT, Optimisation

SHORT = GeneratorTraining(
    arch="mlp", width=32, depth=1, optimisation=Optimisation(steps=12, batch_size=16, checkpoint_every=4)
)
NAMES = [f"digit {i}" for i in range(10)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def digits():
    return torch.tensor(load_digits().images[:600] / 16, dtype=torch.float32)[:, None]


@pytest.fixture(scope="module")
def labels():
    return torch.tensor(load_digits().target[:600])


@pytest.fixture(scope="module")
def text():
    """A tiny text encoder with random weights, and its tokenizer."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "handwritten", "zero", "one", "two"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(
            BertConfig(
                vocab_size=len(words),
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
            )
        )
    return model.eval(), tokenizer


class Constant(torch.nn.Module):
    """A denoiser that predicts nothing."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, times, **conditions):
        self.seen = (x, times, conditions)
        return type("Output", (), {"sample": self.weight * x})


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_the_loss_of_predicting_nothing_is_that_of_the_target(prediction):
    images = torch.full((40000, 1, 2, 2), 0.9)
    objective = Denoising(Constant(), make_scheduler(1000, prediction), 0.9, 0.1)
    loss = float(objective({"images": images}, seeded()).detach())
    # The noise has variance 1; the velocity's mean square is a + (1 - a) 0.8^2 at the signal level a.
    signal = objective.scheduler.alphas_cumprod.mean()
    expected = 1.0 if prediction == "epsilon" else float(signal + (1 - signal) * 0.64)
    assert loss == pytest.approx(expected, rel=0.02)


def test_noisy_images_have_the_signal_of_their_time():
    images = torch.ones(3000, 1, 2, 2)
    objective = Denoising(Constant(), make_scheduler(), 0.9, 0.1)
    objective({"images": images}, seeded())
    x, times, _ = objective.denoiser.seen
    signal = objective.scheduler.alphas_cumprod[times].sqrt()
    rest = (x.mean((1, 2, 3)) - signal) / (1 - signal**2).sqrt()
    assert rest.mean() == pytest.approx(0, abs=0.03)
    # The mean of four pixels has half of the noise's deviation.
    assert rest.std() == pytest.approx(0.5, rel=0.05)
    assert times.min() < 20
    assert times.max() > 980


@pytest.mark.parametrize(("name", "value"), [("labels", 7), ("texts", 0.0)])
def test_a_part_of_the_conditions_is_hidden(name, value):
    denoiser = Constant()
    denoiser.config = {"num_classes": 7}
    objective = Denoising(denoiser, make_scheduler(), 0.9, 0.25)
    rows = torch.ones(4000, dtype=torch.long) if name == "labels" else torch.ones(4000, 3)
    objective({"images": torch.zeros(4000, 1, 2, 2), name: rows}, seeded())
    (seen,) = denoiser.seen[2].values()
    hidden = (seen == value) if name == "labels" else (seen == value).all(1)
    assert hidden.float().mean() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(seen[~hidden], rows[~hidden])


def test_the_average_forgets_its_first_weights_at_a_growing_rate():
    objective = Denoising(Constant(), make_scheduler(), 0.5, 0.1)
    expected = None
    for step in range(12):
        objective.denoiser.weight.data.fill_(float(step))
        objective.after_step(0)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = float(step) if expected is None else decay * expected + (1 - decay) * step
        assert float(objective.average.module.weight) == pytest.approx(expected, rel=1e-5)


def test_a_class_conditional_generator_learns_and_its_folder_samples_alike(digits, labels, tmp_path):
    training = GeneratorTraining(
        arch="mlp",
        width=64,
        depth=2,
        optimisation=Optimisation(steps=150, batch_size=64, learning_rate=3e-3),
    )
    out = tmp_path / "generator"
    denoiser, scheduler = train_generator(
        digits, training, labels=labels, class_names=NAMES, out=out, device="cpu"
    )
    history = json.loads((out / "training.json").read_text())["history"]
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    loaded = DiffusionPipeline.from_pretrained(out)
    assert type(loaded) is PixelDiffusionPipeline
    assert loaded.class_index("digit 3") == loaded.class_index("3") == 3
    with pytest.raises(InputError, match="no class 'cat'; the classes are digit 0, digit 1"):
        loaded.class_index("cat")
    chosen = torch.tensor([0, 1, 7])
    for scale in (1.0, 1.5):
        images = loaded(
            class_labels=chosen,
            guidance_scale=scale,
            num_inference_steps=6,
            generator=seeded(),
            output_type="pt",
        ).images
        expected = guided_sample(
            denoiser,
            scheduler,
            shape=(3, 1, 8, 8),
            class_labels=chosen,
            guidance_scale=scale,
            num_inference_steps=6,
            generator=seeded(),
        )
        torch.testing.assert_close(images, expected, atol=1e-5, rtol=0)
    with pytest.raises(InputError, match="trained without captions"):
        loaded(prompt="a zero", num_inference_steps=2)


def test_an_unconditional_unet_is_saved_as_diffusers_own_pipeline(digits, tmp_path):
    training = GeneratorTraining(
        arch="unet", width=8, optimisation=Optimisation(steps=6, batch_size=8, precision="no")
    )
    out = tmp_path / "generator"
    denoiser, scheduler = train_generator(digits, training, out=out, device="cpu")
    index = json.loads((out / "model_index.json").read_text())
    assert index["_class_name"] == "DDPMPipeline"
    assert index["unet"] == ["diffusers", "UNet2DModel"]
    pipeline = DDPMPipeline.from_pretrained(out)
    assert type(pipeline.unet) is UNet2DModel
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(batch_size=2, num_inference_steps=4, generator=seeded(), output_type="np").images
    expected = guided_sample(
        denoiser, scheduler, shape=(2, 1, 8, 8), num_inference_steps=4, generator=seeded()
    )
    torch.testing.assert_close(torch.tensor(images).permute(0, 3, 1, 2), expected, atol=1e-5, rtol=0)


def test_a_text_conditional_generator_takes_prompts_after_loading(digits, labels, text, tmp_path):
    model, tokenizer = text
    captions = ["a handwritten zero", "a handwritten one", "a handwritten two"]
    rows = embed_sentences(model, tokenizer, captions)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    out = tmp_path / "generator"
    denoiser, _ = train_generator(
        digits,
        SHORT,
        texts=rows[labels.clamp(max=2)],
        text_encoder=model,
        tokenizer=tokenizer,
        out=out,
        device="cpu",
    )
    assert denoiser.config["text_dim"] == 16
    pipeline = load_generator(out)
    torch.testing.assert_close(pipeline.encode_prompt(captions), rows)
    zero, one = (
        pipeline(prompt=prompt, num_inference_steps=3, generator=seeded(), output_type="pt").images
        for prompt in captions[:2]
    )
    assert zero.shape == (1, 1, 8, 8)
    assert not torch.equal(zero, one)
    with pytest.raises(InputError, match="knows no classes"):
        pipeline.class_index("3")
    with pytest.raises(InputError, match="a caption is empty"):
        pipeline.encode_prompt(["a zero", " "])


def test_padding_changes_no_sentence(text):
    model, tokenizer = text
    alone = embed_sentences(model, tokenizer, ["a one"])
    beside = embed_sentences(model, tokenizer, ["a one", "a handwritten two a two a two"])
    torch.testing.assert_close(beside[:1], alone, atol=1e-6, rtol=0)


def test_an_interrupted_training_continues_to_the_same_generator(digits, labels, tmp_path, monkeypatch):
    def run(folder):
        return train_generator(digits, SHORT, labels=labels, out=tmp_path / folder, device="cpu")

    whole, _ = run("whole")
    original, calls = Denoising.forward, []

    def interrupted(objective, batch, generator):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return original(objective, batch, generator)

    monkeypatch.setattr(generator_training.Denoising, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("part")
    assert {path.name for path in (tmp_path / "part").iterdir()} == {CHECKPOINT}
    resumed, _ = run("part")
    assert len(calls) == 7 + 8
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    again, _ = run("part")
    assert len(calls) == 7 + 8
    assert all(map(torch.equal, whole.state_dict().values(), again.state_dict().values()))
    with pytest.raises(InputError, match="another data"):
        train_generator(digits, SHORT, labels=9 - labels, out=tmp_path / "part", device="cpu")


def test_the_pipeline_calls_back_and_makes_pictures(digits):
    denoiser, scheduler = train_generator(digits, SHORT, device="cpu")
    pipeline = make_pipeline(denoiser, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    seen = []

    def blank(pipe, index, time, tensors):
        seen.append((index, int(time)))
        return {"latents": torch.zeros_like(tensors["latents"])}

    images = pipeline(batch_size=2, num_inference_steps=3, callback_on_step_end=blank).images
    assert [index for index, _ in seen] == [0, 1, 2]
    assert [image.size for image in images] == [(8, 8), (8, 8)]
    # The last step's result was replaced by grey.
    assert images[0].getpixel((0, 0)) in (127, 128)
    with pytest.raises(InputError, match="not both"):
        pipeline(class_labels=1, prompt="a zero")


def test_images_of_their_own_generators_do_not_depend_on_batch_mates(digits, labels):
    denoiser, scheduler = train_generator(digits, SHORT, labels=labels, device="cpu")
    pipeline = make_pipeline(denoiser, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    options = {"num_inference_steps": 4, "output_type": "pt"}
    both = pipeline(class_labels=[2, 5], generator=[seeded(1), seeded(2)], **options).images
    alone = pipeline(class_labels=[5], generator=[seeded(2)], **options).images
    torch.testing.assert_close(both[1:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.zeros(5, dtype=torch.long)}, "5 labels were given for 600 images"),
        ({"labels": torch.full((600,), -1)}, "whole numbers from 0"),
        ({"labels": torch.zeros(600)}, "whole numbers from 0"),
        ({"texts": torch.full((600, 3), float("nan"))}, "finite embeddings"),
        ({"texts": torch.zeros(600, 3), "labels": torch.zeros(600, dtype=torch.long)}, "not on both"),
        ({"labels": torch.arange(600) % 4, "class_names": ["a", "b"]}, "2 class names were given for 4"),
        ({"class_names": ["a"]}, "1 class names were given for 0"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(digits, changes, message):
    with pytest.raises(InputError, match=message):
        train_generator(digits, SHORT, **changes, device="cpu")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"width": 0}, "width must be at least 1"),
        ({"train_timesteps": 5}, "train_timesteps must be at least 10"),
        ({"ema_decay": 1}, "ema_decay"),
        ({"condition_dropout": -0.1}, "condition_dropout"),
        ({"prediction_type": "sample"}, "epsilon or v_prediction"),
    ],
)
def test_bad_settings_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        GeneratorTraining(**facts)


def test_a_folder_without_a_generator_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no generator"):
        load_generator(tmp_path)
    (tmp_path / "model_index.json").write_text('{"_class_name": "DDPMPipeline"')
    with pytest.raises(InputError, match="cannot be loaded"):
        load_generator(tmp_path)
    with pytest.raises(InputError, match="nobody/nothing cannot be loaded"):
        load_generator("nobody/nothing")
