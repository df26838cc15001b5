"""Sampling folders: resuming, extending, batch mates, conditions, other pipelines, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
from diffusers.pipelines.dit.pipeline_dit import DiTPipeline
from diffusers.schedulers.scheduling_ddim import DDIMScheduler

from assay.errors import InputError
from assay.methods.jepa_guidance import sampling_job
from assay.methods.jepa_guidance.encoder_config import JEPAEncoderConfig
from assay.methods.jepa_guidance.encoder_model import JEPAEncoder
from assay.methods.jepa_guidance.generator_model import make_denoiser
from assay.methods.jepa_guidance.generator_training import make_pipeline, make_scheduler
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.sampling_job import (
    SamplingJob,
    file_name,
    fingerprint,
    read_samples,
    run_job,
)
from assay.methods.jepa_guidance.scorer import JEPAScorer

CONFIG = JEPAGuidanceConfig(eta=0.1, k=3, power_iters=1, assume_sign=1)


@pytest.fixture(scope="module")
def pipeline():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        denoiser = make_denoiser("mlp", image_size=8, num_channels=1, width=32, depth=1, num_classes=3)
    return make_pipeline(denoiser.eval(), make_scheduler(), class_names=["zero", "one", "two"])


@pytest.fixture(scope="module")
def scorer():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = JEPAEncoder(
            JEPAEncoderConfig(arch="mlp", image_size=8, num_channels=1, hidden_size=8, width=16)
        )
    return JEPAScorer(encoder, mean=0.5, std=0.5, image_size=8)


def job(**changes):
    return SamplingJob(**{"steps": 4, "seed": 10, "batch_size": 3} | changes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


@pytest.mark.parametrize("guided", [False, True])
def test_an_interrupted_job_ends_with_the_same_files(pipeline, scorer, tmp_path, monkeypatch, guided):
    facts = {"config": CONFIG} if guided else {}
    given = {"scorer": scorer} if guided else {}
    report = run_job(job(**facts), pipeline, 8, tmp_path / "whole", **given)
    written = []

    def interrupted(path, image, facts):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(path)
        return original(path, image, facts)

    original = sampling_job.write_png
    with monkeypatch.context() as patched:
        patched.setattr(sampling_job, "write_png", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_job(job(**facts), pipeline, 8, tmp_path / "part", **given)
    assert len(contents(tmp_path / "part")) == 4
    # A torn file counts as missing.
    first = tmp_path / "part" / file_name(10)
    first.write_bytes(first.read_bytes()[:40])
    moved = []
    run_job(job(**facts), pipeline, 8, tmp_path / "part", **given, advance=moved.append)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert moved == [3, 3, 2]
    assert set(contents(tmp_path / "whole")) == {file_name(seed) for seed in range(10, 18)}
    if guided:
        # Steps 1, 2 and 3 of 4 are guided for each of the images.
        assert report.guided + report.skipped + report.flat == 8 * 3
    else:
        assert report is None


def test_finished_images_are_not_sampled_again_and_a_job_may_be_extended(pipeline, tmp_path, monkeypatch):
    run_job(job(), pipeline, 3, tmp_path)
    before = contents(tmp_path)
    calls = []
    original = sampling_job.guided_sample
    monkeypatch.setattr(
        sampling_job, "guided_sample", lambda *a, **k: calls.append(k["shape"][0]) or original(*a, **k)
    )
    run_job(job(), pipeline, 3, tmp_path)
    assert calls == []
    run_job(job(), pipeline, 6, tmp_path)
    assert calls == [3]
    assert before.items() <= contents(tmp_path).items()
    assert len(contents(tmp_path)) == 6


def test_an_image_is_that_of_its_seed_whatever_is_beside_it(pipeline, scorer, tmp_path):
    guided = {"config": CONFIG}
    run_job(job(**guided), pipeline, 6, tmp_path / "a", scorer=scorer)
    run_job(job(**guided, seed=13, batch_size=1), pipeline, 2, tmp_path / "b", scorer=scorer)
    ((_, first),) = read_samples(tmp_path / "a", [13, 14])
    ((_, second),) = read_samples(tmp_path / "b", [13, 14])
    # A rounding of the last bit may move one of 255 levels.
    assert (first - second).abs().max() <= 1.01 / 255
    assert (first[0] - first[1]).abs().max() > 0.1


def test_guidance_changes_images_and_no_length_does_not(pipeline, scorer, tmp_path):
    run_job(job(), pipeline, 3, tmp_path / "plain")
    run_job(job(config=CONFIG), pipeline, 3, tmp_path / "guided", scorer=scorer)
    still = JEPAGuidanceConfig(eta=0, k=3, assume_sign=1)
    report = run_job(job(config=still), pipeline, 3, tmp_path / "still", scorer=scorer)
    images = [next(read_samples(tmp_path / name, [10, 11, 12]))[1] for name in ("plain", "guided", "still")]
    assert torch.equal(images[0], images[2])
    assert not torch.equal(images[0], images[1])
    assert report.guided == 0


def test_conditions_are_taken_in_turn(pipeline, tmp_path):
    run_job(job(classes=(0, 2)), pipeline, 4, tmp_path / "turn")
    for index in range(4):
        run_job(job(classes=((0, 2)[index % 2],), seed=10 + index), pipeline, 1, tmp_path / f"{index}")
        ((_, alone),) = read_samples(tmp_path / f"{index}", [10 + index])
        ((_, beside),) = read_samples(tmp_path / "turn", [10 + index])
        assert (alone - beside).abs().max() <= 1.01 / 255


def test_a_folder_of_other_settings_or_other_things_is_refused(pipeline, tmp_path):
    run_job(job(), pipeline, 2, tmp_path / "a")
    with pytest.raises(InputError, match="another steps"):
        run_job(job(steps=5), pipeline, 2, tmp_path / "a")
    with pytest.raises(InputError, match="another sources"):
        run_job(job(sources={"model": "x"}), pipeline, 2, tmp_path / "a")
    (tmp_path / "a" / "settings.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        run_job(job(), pipeline, 2, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds no samples of assay"):
        run_job(job(), pipeline, 2, tmp_path / "b")
    with pytest.raises(InputError, match="is a file"):
        run_job(job(), pipeline, 2, tmp_path / "b" / "letter.txt")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 0}, "batch size"),
        ({"seed": -1}, "seed"),
        ({"guidance_scale": float("inf")}, "guidance scale"),
        ({"prompts": ("a",), "classes": (1,)}, "prompts or classes"),
    ],
)
def test_bad_jobs_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        job(**facts)


def test_a_job_that_the_pipeline_cannot_do_is_refused(pipeline, scorer, tmp_path):
    with pytest.raises(InputError, match="trained without captions"):
        run_job(job(prompts=("a dog",)), pipeline, 1, tmp_path / "a")
    with pytest.raises(InputError, match="needs no decoder"):
        run_job(job(), pipeline, 1, tmp_path / "a", tiny_decoder=torch.nn.Identity())
    with pytest.raises(InputError, match="at least 1, got 0"):
        run_job(job(), pipeline, 0, tmp_path / "b")
    with pytest.raises(InputError, match="both a scorer and its configuration"):
        run_job(job(), pipeline, 1, tmp_path / "c", scorer=scorer)
    with pytest.raises(InputError, match="class labels must be from 0 to 3"):
        run_job(job(classes=(7,)), pipeline, 1, tmp_path / "d")


def dit():
    """A tiny class-conditional latent pipeline with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = DiTTransformer2DModel(
            sample_size=4,
            num_layers=1,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=2,
            in_channels=4,
            out_channels=8,
            num_embeds_ada_norm=10,
        )
        vae = AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=8,
        )
    pipe = DiTPipeline(transformer=transformer, vae=vae, scheduler=DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_another_pipeline_of_diffusers_is_sampled_by_its_own_call(scorer, tmp_path):
    pipe = dit()
    facts = {"classes": (3,), "guidance_scale": 1.0, "batch_size": 2}
    run_job(job(**facts), pipe, 2, tmp_path / "plain")
    report = run_job(job(**facts, config=CONFIG), pipe, 2, tmp_path / "guided", scorer=_colour_scorer())
    ((_, plain),) = read_samples(tmp_path / "plain", [10, 11])
    ((_, guided),) = read_samples(tmp_path / "guided", [10, 11])
    assert plain.shape == (2, 3, 8, 8)
    assert not torch.equal(plain, guided)
    assert report.guided == 2 * 3
    tiny = AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        latent_channels=4,
    )
    small = replace(CONFIG, decode="tiny")
    run_job(
        job(**facts, config=small), pipe, 2, tmp_path / "tiny", scorer=_colour_scorer(), tiny_decoder=tiny
    )
    ((_, other),) = read_samples(tmp_path / "tiny", [10, 11])
    assert not torch.equal(other, guided)
    with pytest.raises(InputError, match="needs a class: pass --class"):
        run_job(job(), pipe, 1, tmp_path / "none")
    with pytest.raises(InputError, match="takes no prompts"):
        run_job(job(prompts=("a dog",)), pipe, 1, tmp_path / "text")


def _colour_scorer():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = JEPAEncoder(
            JEPAEncoderConfig(arch="mlp", image_size=8, num_channels=3, hidden_size=8, width=16)
        )
    return JEPAScorer(encoder, mean=[0.5] * 3, std=[0.5] * 3, image_size=8)


def test_a_fingerprint_follows_weights_and_not_records(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path / "a")
    first = fingerprint(str(tmp_path / "a"))
    (tmp_path / "a" / "training.json").write_text("{}")
    assert fingerprint(str(tmp_path / "a")) == first
    config = tmp_path / "a" / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"depth": 2}))
    assert fingerprint(str(tmp_path / "a")) != first
    assert fingerprint("stabilityai/some-model") == "stabilityai/some-model"
