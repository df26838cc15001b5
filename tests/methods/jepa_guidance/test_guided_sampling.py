"""Guided sampling of pixel models: identity without guidance, the length of the shift, and faults."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.pipelines.ddim.pipeline_ddim import DDIMPipeline
from diffusers.pipelines.ddpm.pipeline_ddpm import DDPMPipeline
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance import (
    GuidanceStep,
    JEPAGuidanceConfig,
    JEPAScorer,
    JEPAShift,
    guided_sample,
)

SHAPE = (3, 1, 8, 8)
STEPS = 6
CONFIG = JEPAGuidanceConfig(eta=0.1, assume_sign=1, k=4)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unet(**options: Any) -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **options,
    ).eval()


def text_unet() -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=12,
        attention_head_dim=4,
    ).eval()


def scorer(activation: nn.Module | None = None, encoder: nn.Module | None = None) -> JEPAScorer:
    torch.manual_seed(1)
    layers = [nn.Flatten(), nn.Linear(64, 32), activation or nn.GELU(), nn.Linear(32, 16)]
    return JEPAScorer(encoder or nn.Sequential(*layers), mean=0.5, std=0.5, image_size=8)


def sample(model: nn.Module | None = None, scheduler: Any = None, *arguments: Any, **options: Any) -> Tensor:
    settings = {"shape": SHAPE, "num_inference_steps": STEPS, "generator": seeded(1)} | options
    return guided_sample(model or unet(), scheduler or DDPMScheduler(), *arguments, **settings)


@pytest.mark.parametrize(
    ("pipeline", "scheduler"), [(DDPMPipeline, DDPMScheduler()), (DDIMPipeline, DDIMScheduler())]
)
def test_without_guidance_it_is_the_pipeline_bit_for_bit(pipeline, scheduler):
    made = pipeline(unet(), scheduler)
    made.set_progress_bar_config(disable=True)
    expected = made(batch_size=3, generator=seeded(1), num_inference_steps=STEPS, output_type="pt").images
    assert torch.equal(sample(None, scheduler), expected)
    assert torch.equal(sample(None, scheduler, scorer(), replace(CONFIG, eta=0.0)), expected)
    assert torch.equal(sample(None, scheduler, scorer(), replace(CONFIG, tau=1e-9)), expected)
    assert not torch.equal(sample(None, scheduler, scorer(), CONFIG), expected)


def test_the_guidance_draws_nothing_from_the_images_generators():
    for generator in (seeded(1), [seeded(i) for i in range(3)]):
        states = []
        for guided in (False, True):
            made = [seeded(i) for i in range(3)] if isinstance(generator, list) else seeded(1)
            torch.manual_seed(9)
            sample(None, None, *((scorer(), CONFIG) if guided else ()), generator=made)
            own = made if isinstance(made, list) else [made]
            states.append([g.get_state() for g in own])
        assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


class Recording:
    """A guidance that keeps its steps and shifts."""

    def __init__(self, guidance) -> None:
        self.guidance = guidance
        self.steps: list[GuidanceStep] = []
        self.shifts: list[Tensor] = []

    def __call__(self, step: GuidanceStep) -> Tensor:
        self.steps.append(step)
        self.shifts.append(self.guidance(step))
        return self.shifts[-1]


@pytest.mark.parametrize("normalize", ["max", "l2"])
def test_the_shift_of_every_sample_has_exactly_the_length_asked_for(normalize):
    config = replace(CONFIG, normalize=normalize)
    recording = Recording(JEPAShift(scorer(), config))
    sample(None, None, config=config, guidance=recording)
    assert [step.index for step in recording.steps] == config.guided_steps(STEPS)
    for shift in recording.shifts:
        flat = shift.flatten(1)
        length = flat.abs().amax(dim=1) if normalize == "max" else flat.norm(dim=1)
        torch.testing.assert_close(length, torch.full((3,), config.eta), rtol=1e-6, atol=1e-6)


def test_the_variance_schedule_and_a_total_scale_the_shift():
    config = replace(CONFIG, schedule="variance", eta_total=2.0)
    recording = Recording(JEPAShift(scorer(), config))
    sample(None, None, config=config, guidance=recording)
    for step, shift in zip(recording.steps, recording.shifts, strict=True):
        expected = 2.0 / len(config.guided_steps(STEPS)) * step.variance
        assert float(shift.abs().max()) == pytest.approx(expected, rel=1e-5)
    assert recording.steps[-1].variance == 0


def test_without_normalisation_the_shift_is_the_gradient_of_the_surrogate():
    config = replace(CONFIG, normalize=None, eta=1e-3)
    measure = scorer()
    recording = Recording(JEPAShift(measure, config))
    sample(None, None, config=config, guidance=recording)
    step, shift = recording.steps[0], recording.shifts[0]
    x = step.x_t.clone().requires_grad_()
    # The directions of the shift are those of its seed and step.
    z = measure.preprocess(step.to_image(step.predict(x)).clamp(0, 1))
    found, _ = measure.surrogate_gradient(z, k=4, seed=config.seed, step=step.index)
    (gradient,) = torch.autograd.grad(z, x, found.gradients)
    torch.testing.assert_close(shift, -1e-3 * gradient, rtol=1e-4, atol=1e-9)


def test_descending_lowers_the_score_and_the_common_direction_raises_it():
    measure = scorer()
    plain = measure.score(sample())
    rare = measure.score(sample(None, None, measure, CONFIG))
    common = measure.score(sample(None, None, measure, replace(CONFIG, direction="common")))
    reverse = measure.score(sample(None, None, measure, replace(CONFIG, assume_sign=-1)))
    assert (rare < plain).all()
    assert (common > plain).all()
    torch.testing.assert_close(reverse, common)


@pytest.mark.parametrize("method", ["exact", "auto"])
def test_the_full_score_guides_small_encoders(method):
    measure = scorer()
    exact = sample(None, None, measure, replace(CONFIG, method=method))
    assert (measure.score(exact) < measure.score(sample())).all()
    assert not torch.equal(exact, sample(None, None, measure, CONFIG))


def test_a_batch_mate_never_changes_a_sample():
    def run(order: list[int], config: JEPAGuidanceConfig) -> Tensor:
        return sample(
            None, None, scorer(), config, shape=(len(order), 1, 8, 8), generator=[seeded(i) for i in order]
        )

    for config in (CONFIG, replace(CONFIG, warm_start=True, power_iters=1)):
        together = run([0, 1, 2], config)
        torch.testing.assert_close(run([2, 0, 1], config), together[[2, 0, 1]], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run([1], config), together[1:2], rtol=1e-4, atol=1e-5)


def test_placement_after_adds_the_shift_to_the_result_and_saves_an_evaluation():
    config = replace(CONFIG, placement="after", tau=1.0)
    calls = []
    model = unet()
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    recording = Recording(JEPAShift(scorer(), config))
    seen: list[Tensor] = []
    sample(model, None, config=config, guidance=recording, on_step=lambda index, x: seen.append(x))
    assert len(calls) == STEPS
    # The same step without the shift, from where the last one began.
    scheduler = DDPMScheduler()
    scheduler.set_timesteps(STEPS)
    step, shift = recording.steps[-1], recording.shifts[-1]
    with torch.no_grad():
        output = unet()(step.x_t, step.t).sample
    torch.testing.assert_close(seen[-2], step.x_t)
    torch.testing.assert_close(seen[-1], scheduler.step(output, int(step.t), step.x_t).prev_sample + shift)
    calls.clear()
    sample(model, None, scorer(), replace(config, placement="before"))
    assert len(calls) == 2 * STEPS


def test_another_guidance_sees_the_step_and_its_shift_is_added():
    seen = []

    def guidance(step: GuidanceStep) -> Tensor:
        seen.append(step)
        return torch.full_like(step.x_t, 0.01)

    config = JEPAGuidanceConfig(interval=2, tau=1.0)
    trajectory: list[Tensor] = []
    labels = torch.tensor([0, 1, 2])
    images = sample(
        unet(num_class_embeds=5),
        None,
        config=config,
        guidance=guidance,
        class_labels=labels,
        on_step=lambda index, x: trajectory.append(x),
    )
    assert images.min() >= 0
    assert images.max() <= 1
    assert [step.index for step in seen] == [0, 2, 4]
    assert len(trajectory) == STEPS
    for step in seen:
        assert step.num_steps == STEPS
        assert torch.equal(step.class_labels, labels)
        assert 0 < step.alpha_bar < step.alpha_bar_previous <= 1
        assert step.alpha_bar_at(int(step.t)) == pytest.approx(step.alpha_bar)
        x = step.x_t.clone().requires_grad_()
        clean = step.predict(x)
        assert torch.autograd.grad(clean.sum(), x)[0].any()
        assert not torch.equal(step.predict(x, 900), clean)
        torch.testing.assert_close(step.to_image(torch.ones(1)), torch.ones(1))
    torch.testing.assert_close(seen[1].x_t, trajectory[1])


def test_classifier_free_guidance_of_classes_and_text():
    labels = torch.tensor([0, 1, 2])
    model = unet(num_class_embeds=5)
    plain = sample(model, None, class_labels=labels)
    strong = sample(model, None, class_labels=labels, guidance_scale=3.0)
    assert not torch.equal(plain, strong)
    # Scale 0 is the null label (the last one) alone.
    null = sample(model, None, class_labels=torch.full((3,), 4))
    torch.testing.assert_close(sample(model, None, class_labels=labels, guidance_scale=0.0), null)
    text = torch.randn(3, 2, 12, generator=seeded(4))
    empty = sample(text_unet(), None, encoder_hidden_states=torch.zeros_like(text))
    found = sample(text_unet(), None, encoder_hidden_states=text, guidance_scale=0.0)
    torch.testing.assert_close(found, empty)
    guided = sample(text_unet(), None, scorer(), CONFIG, encoder_hidden_states=text, guidance_scale=2.0)
    assert guided.isfinite().all()


def test_a_condition_may_change_at_every_step():
    text = torch.randn(3, 2, 12, generator=seeded(4))
    asked = []

    def fading(index: int, t: Tensor, states: Tensor) -> Tensor:
        asked.append((index, int(t)))
        return states * 0

    found = sample(text_unet(), None, encoder_hidden_states=text, condition=fading)
    torch.testing.assert_close(found, sample(text_unet(), None, encoder_hidden_states=text * 0))
    assert [index for index, _ in asked] == list(range(STEPS))
    assert [t for _, t in asked] == sorted((t for _, t in asked), reverse=True)


def test_the_noise_of_each_step_can_be_scaled():
    class Silent(nn.Module):
        """A denoiser that sees noise 0: all that is random is the sampler's."""

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return torch.zeros_like(x)

    def last(scale: float, generator: torch.Generator) -> Tensor:
        steps: list[Tensor] = []
        sample(
            Silent(),
            DDPMScheduler(clip_sample=False),
            latents=torch.zeros(SHAPE),
            noise_scale=scale,
            generator=generator,
            on_step=lambda index, x: steps.append(x),
        )
        return steps[0]

    assert not last(0.0, seeded(2)).any()
    torch.testing.assert_close(last(0.5, seeded(2)), 0.5 * last(1.0, seeded(2)))
    with pytest.raises(InputError, match="noise_scale needs a DDPMScheduler"):
        sample(None, DDIMScheduler(), noise_scale=0.5)


def test_initial_noise_and_left_out_steps():
    noise = torch.randn(SHAPE, generator=seeded(5))
    steps: list[int] = []
    sample(None, DDIMScheduler(), latents=noise, first_step=2, on_step=lambda index, x: steps.append(index))
    assert steps == list(range(2, STEPS))
    generator = seeded(1)
    drawn = torch.randn(SHAPE, generator=generator)
    assert torch.equal(sample(None, DDPMScheduler(), latents=drawn, generator=generator), sample())


def test_a_scheduler_that_scales_its_input():
    measure = scorer()
    recording = Recording(JEPAShift(measure, CONFIG))
    sample(None, EulerDiscreteScheduler(), config=CONFIG, guidance=recording)
    for step, shift in zip(recording.steps, recording.shifts, strict=True):
        before, after = (
            measure.surrogate(step.to_image(step.predict(x)).clamp(0, 1), k=4)
            for x in (step.x_t, step.x_t + 0.1 * shift)
        )
        assert (after <= before).all()
        assert (after < before).any()


def test_a_warm_start_uses_the_subspace_of_the_step_before():
    measure = scorer()
    config = replace(CONFIG, warm_start=True, power_iters=1)
    images = sample(None, None, measure, config)
    assert (measure.score(images) < measure.score(sample())).all()
    shift = JEPAShift(measure, config)
    first = sample(None, None, config=config, guidance=shift)
    # A second run starts afresh.
    assert torch.equal(sample(None, None, config=config, guidance=shift), first)


def test_the_report_counts_steps_of_samples():
    shift = JEPAShift(scorer(), CONFIG)
    sample(None, None, config=CONFIG, guidance=shift)
    guided = CONFIG.guided_steps(STEPS)
    assert shift.report.guided == 3 * len(guided)
    assert shift.report.skipped == shift.report.redrawn == 0
    assert [index for index, _ in shift.report.surrogate] == guided


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.Identity(), nn.LeakyReLU()], ids=["relu", "linear", "leaky"]
)
def test_an_encoder_without_a_second_derivative_is_refused(activation):
    with pytest.raises(InputError, match="the encoder has no second derivative"):
        sample(None, None, scorer(activation), CONFIG)


class Partly(nn.Module):
    """Most of the curvature of this encoder is hidden from autograd, as by a kernel differentiable once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        gate = torch.sigmoid(1.7 * hidden)
        return self.second(hidden * (0.8 * gate.detach() + 0.2 * gate))


def test_an_encoder_that_hides_a_derivative_is_reported():
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="its gradient says"):
        sample(None, None, scorer(encoder=Partly()), CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(None, None, scorer(), CONFIG)


def test_nan_is_skipped_for_its_sample_and_counted():
    class Breaking(nn.Module):
        """Values that are not finite for the second of seven samples."""

        def __init__(self) -> None:
            super().__init__()
            self.unet = unet()

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            output = self.unet(x, t).sample
            if torch.is_grad_enabled():
                factors = torch.ones(len(x))
                factors[1] = torch.nan
                output = output * factors.view(-1, 1, 1, 1)
            return output

    shape = (7, 1, 8, 8)
    shift = JEPAShift(scorer(), CONFIG)
    recording = Recording(shift)
    images = sample(Breaking(), None, config=CONFIG, guidance=recording, shape=shape)
    assert images.isfinite().all()
    guided = len(CONFIG.guided_steps(STEPS))
    assert shift.report.skipped == guided
    assert shift.report.guided == 6 * guided
    for found in recording.shifts:
        assert not found[1].any()
        assert found[[0, 2, 3, 4, 5, 6]].flatten(1).any(dim=1).all()
    with pytest.raises(InputError, match="had to skip 4 of 8 sample-steps"):
        sample(Breaking(), None, scorer(), CONFIG, shape=(2, 1, 8, 8))


def test_a_saturated_image_is_reported_and_left_alone():
    class Bright(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return x - 90

    shift = JEPAShift(scorer(), CONFIG)
    with pytest.warns(UserWarning, match="100% of the decoded image is outside its range"):
        sample(Bright(), None, config=CONFIG, guidance=shift)
    assert shift.report.flat == 3 * len(CONFIG.guided_steps(STEPS))
    free = JEPAShift(scorer(), replace(CONFIG, clamp="none"))
    sample(Bright(), None, config=CONFIG, guidance=free)
    assert free.report.flat == 0


def test_a_denoiser_that_detaches_is_refused():
    class Detached(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return x.detach()

    class Sampled(DDPMScheduler):
        pass

    with pytest.raises(InputError, match="denoiser's output is detached"):
        sample(Detached(), Sampled(prediction_type="sample"), scorer(), CONFIG)


def test_the_denoiser_is_as_it_was_afterwards():
    model = unet().train()
    model.conv_in.bias.requires_grad_(False)
    sample(model, None, scorer(), replace(CONFIG, checkpoint=True))
    assert model.training
    assert not model.conv_in.bias.requires_grad
    assert model.conv_in.weight.requires_grad
    assert not model.is_gradient_checkpointing
    with pytest.raises(InputError, match="offers no checkpointing"):
        sample(nn.Linear(8, 8), None, scorer(), replace(CONFIG, checkpoint=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (3, 8, 8)}, "shape is"),
        ({"shape": (0, 1, 8, 8)}, "shape is"),
        ({"class_labels": torch.zeros(2)}, "class_labels has 2 rows for a batch of 3"),
        ({"encoder_hidden_states": torch.zeros(2, 4)}, "encoder_hidden_states has 2 rows"),
        ({"generator": [seeded()]}, "1 generators for a batch of 3"),
        ({"condition": lambda index, t, states: states}, "there are none"),
        ({"guidance_scale": 2.0}, "guidance_scale needs class_labels"),
        ({"latents": torch.zeros(3, 1, 4, 4)}, "latents have shape"),
        ({"first_step": 6}, "first_step is 6"),
        ({"first_step": -1}, "first_step is -1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        sample(None, None, **options)


def test_what_cannot_guide_is_refused():
    with pytest.raises(InputError, match="whole range of an image"):
        sample(None, None, scorer(), replace(CONFIG, eta=2.5))
    with pytest.raises(InputError, match="not calibrated"):
        sample(None, None, scorer(), replace(CONFIG, assume_sign=None))
    with pytest.raises(InputError, match="more than the 16 singular values"):
        sample(None, None, scorer(), replace(CONFIG, k=15))
    with pytest.raises(InputError, match="no label for 'no class'"):
        sample(unet(), None, class_labels=torch.zeros(3, dtype=torch.long), guidance_scale=2.0)
