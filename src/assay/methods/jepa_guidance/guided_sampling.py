"""Sampling images from a pixel diffusion model, with any guidance."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance.freezing import frozen
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.guidance_step import Guidance, GuidanceStep
from assay.methods.jepa_guidance.jepa_shift import JEPAShift
from assay.methods.jepa_guidance.prediction import NoiseLevel, NoiseSchedule
from assay.methods.jepa_guidance.scorer import JEPAScorer

# Pixel models work in [-1, 1].
PIXEL_RANGE = 2.0

Generators = torch.Generator | list[torch.Generator] | None
Condition = Callable[[int, Tensor, Tensor], Tensor]


def guided_sample(
    unet: nn.Module,
    scheduler: Any,
    scorer: JEPAScorer | None = None,
    config: JEPAGuidanceConfig | None = None,
    *,
    shape: tuple[int, ...],
    num_inference_steps: int,
    generator: Generators,
    class_labels: Int[Tensor, " batch"] | None = None,
    encoder_hidden_states: Float[Tensor, "batch ..."] | None = None,
    guidance_scale: float = 1.0,
    guidance: Guidance | None = None,
    latents: Float[Tensor, "batch channels height width"] | None = None,
    first_step: int = 0,
    noise_scale: float = 1.0,
    condition: Condition | None = None,
    on_step: Callable[[int, Tensor], None] | None = None,
) -> Float[Tensor, "batch channels height width"]:
    """Sample images in [0, 1] from a denoiser of pixels in [-1, 1].

    Without a guidance this makes the images of diffusers' own pixel pipelines, bit for bit. The guidance
    draws nothing from the generator of the images.

    Args:
        unet: the denoiser, called as `unet(x, t, class_labels=..., encoder_hidden_states=...)` with what is
            given; returns the prediction or an output with `.sample`.
        scheduler: one of diffusers' (see `NoiseSchedule`).
        scorer: the scorer whose gradient guides; None: no JEPA guidance.
        config: the settings of the guidance; also says which steps another `guidance` is called at.
        shape: (batch, channels, height, width).
        num_inference_steps: number of steps.
        generator: of the images' noise; a list gives each sample its own, so that it does not depend on its
            batch mates.
        class_labels: the class of each sample.
        encoder_hidden_states: the text embedding of each sample.
        guidance_scale: strength of classifier-free guidance; 1: none.
        guidance: another guidance than JEPA's: any callable from a `GuidanceStep` to the shift to add.
        latents: the initial noise, instead of a draw.
        first_step: leave out the steps before this one.
        noise_scale: factor of the noise that each step adds (DDPM only).
        condition: changes the text embedding at each step: (index, t, embedding) -> embedding.
        on_step: called after each step with its index and the sample.

    Raises:
        InputError: the arguments do not fit together.
    """
    settings = JEPAGuidanceConfig() if config is None else config
    _check_arguments(shape, class_labels, encoder_hidden_states, condition, guidance_scale, generator)
    if guidance is None and scorer is not None and settings.step_size(num_inference_steps) > 0:
        check_pixel_range(settings, num_inference_steps)
        guidance = JEPAShift(scorer, settings)
    parameter = next(unet.parameters(), torch.zeros(()))
    scheduler.set_timesteps(num_inference_steps, device=parameter.device)
    schedule = NoiseSchedule(scheduler)
    if not 0 <= first_step < schedule.num_steps:
        raise InputError(f"first_step is {first_step}; it must be one of the {schedule.num_steps} steps")
    x = _initial(latents, shape, scheduler, generator, parameter)
    denoiser = _Denoiser(unet, schedule, class_labels, encoder_hidden_states, guidance_scale, condition)
    guided = set(settings.guided_steps(schedule.num_steps)) if guidance is not None else set()
    extra = _step_arguments(scheduler, generator)
    with frozen(unet, checkpoint=settings.checkpoint and guidance is not None):
        for index in range(first_step, schedule.num_steps):
            x = _step(x, index, denoiser, guidance if index in guided else None, settings, extra, noise_scale)
            if on_step is not None:
                on_step(index, x)
    return (x / 2 + 0.5).clamp(0, 1)


def _step(
    x: Tensor,
    index: int,
    denoiser: _Denoiser,
    guidance: Guidance | None,
    config: JEPAGuidanceConfig,
    extra: dict[str, Any],
    noise_scale: float,
) -> Tensor:
    scheduler = denoiser.schedule.scheduler
    timestep = scheduler.timesteps[index]
    shift = None
    evaluation = _Evaluation(denoiser, index, x)
    if guidance is not None:
        shift = guidance(evaluation.as_step(extra.get("generator")))
        if config.placement == "before":
            x, shift = x + shift, None
            evaluation = _Evaluation(denoiser, index, x)
    # Some schedulers insist on being asked; the denoiser's input is scaled the same way.
    scheduler.scale_model_input(x, timestep)
    output = evaluation.output()
    with torch.no_grad():
        result = scheduler.step(output, timestep, x, **extra)
        following = result.prev_sample
        if noise_scale != 1:
            mean = _posterior_mean(denoiser.schedule, index, x, result)
            following = mean + noise_scale * (following - mean)
    return following if shift is None else following + shift


class _Denoiser:
    """A denoiser with its conditions and classifier-free guidance."""

    def __init__(
        self,
        unet: nn.Module,
        schedule: NoiseSchedule,
        class_labels: Tensor | None,
        encoder_hidden_states: Tensor | None,
        guidance_scale: float,
        condition: Condition | None,
    ) -> None:
        self.schedule = schedule
        self.labels = class_labels
        self._unet = unet
        self._states = encoder_hidden_states
        self._scale = guidance_scale
        self._condition = condition

    def __call__(self, x: Tensor, index: int, level: NoiseLevel, t: Tensor) -> Tensor:
        x = self.schedule.model_input(x, level)
        states, labels = self._states, self.labels
        if states is not None and self._condition is not None:
            states = self._condition(index, t, states)
        if self._scale == 1 or (states is None and labels is None):
            return self._evaluate(x, t, states, labels)
        both = None if states is None else torch.cat([torch.zeros_like(states), states])
        every = None if labels is None else torch.cat([_null_labels(self._unet, labels), labels])
        free, bound = self._evaluate(torch.cat([x, x]), t, both, every).chunk(2)
        return free + self._scale * (bound - free)

    def _evaluate(self, x: Tensor, t: Tensor, states: Tensor | None, labels: Tensor | None) -> Tensor:
        given = {"encoder_hidden_states": states, "class_labels": labels}
        output = self._unet(x, t, **{name: value for name, value in given.items() if value is not None})
        return output if isinstance(output, Tensor) else output.sample


class _Evaluation:
    """A denoiser at one step and sample: its output is computed once, by the guidance or by the step."""

    def __init__(self, denoiser: _Denoiser, index: int, x: Tensor) -> None:
        self._denoiser = denoiser
        self._schedule = denoiser.schedule
        self._index = index
        self._x = x.detach()
        self._t = self._schedule.scheduler.timesteps[index]
        self._output: Tensor | None = None

    def output(self) -> Tensor:
        """The denoiser's output at the step's sample."""
        if self._output is None:
            with torch.no_grad():
                level = self._schedule.level(self._index)
                self._output = self._denoiser(self._x, self._index, level, self._t)
        return self._output

    def predict(self, x: Tensor, t: int | None = None) -> Tensor:
        own = t is None
        level = self._schedule.level(self._index) if t is None else self._schedule.level_at(t)
        timestep = self._t if t is None else torch.full_like(self._t, t)
        output = self._denoiser(x.to(self._x.dtype), self._index, level, timestep)
        if own and self._output is None and torch.equal(x.detach().to(self._x.dtype), self._x):
            self._output = output.detach()
        return self._schedule.clean(output, x, level)

    def as_step(self, generator: Generators) -> GuidanceStep:
        schedule, index = self._schedule, self._index
        return GuidanceStep(
            x_t=self._x,
            t=self._t,
            index=index,
            num_steps=schedule.num_steps,
            predict=self.predict,
            to_image=lambda clean: clean / 2 + 0.5,
            alpha_bar=schedule.level(index).alpha_bar,
            alpha_bar_previous=schedule.level(index + 1).alpha_bar,
            variance=schedule.posterior_variance(index),
            alpha_bar_at=lambda t: schedule.level_at(t).alpha_bar,
            generator=generator,
            class_labels=self._denoiser.labels,
        )


def _initial(
    latents: Tensor | None, shape: tuple[int, ...], scheduler: Any, generator: Generators, parameter: Tensor
) -> Tensor:
    from diffusers.utils.torch_utils import randn_tensor

    if latents is None:
        x = randn_tensor(shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
    elif latents.shape != shape:
        raise InputError(f"latents have shape {tuple(latents.shape)}, not {tuple(shape)}")
    else:
        x = latents.to(parameter)
    return x * scheduler.init_noise_sigma


def _posterior_mean(schedule: NoiseSchedule, index: int, x: Tensor, result: Any) -> Tensor:
    """The mean of DDPM's posterior, with the clean image as the scheduler clipped it."""
    clean = getattr(result, "pred_original_sample", None)
    if type(schedule.scheduler).__name__ != "DDPMScheduler" or clean is None:
        raise InputError(
            f"noise_scale needs a DDPMScheduler, not {type(schedule.scheduler).__name__}: other schedulers "
            "do not say what noise they added"
        )
    before, after = schedule.level(index).alpha_bar, schedule.level(index + 1).alpha_bar
    ratio = before / after
    return after**0.5 * (1 - ratio) / (1 - before) * clean + ratio**0.5 * (1 - after) / (1 - before) * x


def _step_arguments(scheduler: Any, generator: Generators) -> dict[str, Any]:
    accepted = inspect.signature(scheduler.step).parameters
    return {"generator": generator} if "generator" in accepted else {}


def _null_labels(unet: nn.Module, labels: Tensor) -> Tensor:
    """The label that stands for no class: one more than the classes."""
    config = getattr(unet, "config", {})
    count = getattr(config, "num_classes", None)
    if count is None:
        embeddings = getattr(config, "num_class_embeds", None)
        count = None if embeddings is None else embeddings - 1
    if count is None:
        raise InputError("the denoiser has no label for 'no class': use guidance_scale=1")
    return torch.full_like(labels, count)


def _check_arguments(
    shape: tuple[int, ...],
    class_labels: Tensor | None,
    encoder_hidden_states: Tensor | None,
    condition: Condition | None,
    guidance_scale: float,
    generator: Generators,
) -> None:
    if len(shape) != 4 or min(shape) < 1:
        raise InputError(f"shape is {shape}; pass (batch, channels, height, width)")
    for name, value in (("class_labels", class_labels), ("encoder_hidden_states", encoder_hidden_states)):
        if value is not None and len(value) != shape[0]:
            raise InputError(f"{name} has {len(value)} rows for a batch of {shape[0]}")
    if isinstance(generator, list) and len(generator) != shape[0]:
        raise InputError(f"there are {len(generator)} generators for a batch of {shape[0]}")
    if condition is not None and encoder_hidden_states is None:
        raise InputError("condition changes encoder_hidden_states, and there are none")
    if guidance_scale != 1 and class_labels is None and encoder_hidden_states is None:
        raise InputError("guidance_scale needs class_labels or encoder_hidden_states; use 1 without them")


def check_pixel_range(config: JEPAGuidanceConfig, num_steps: int) -> None:
    """Refuse a shift that leaves the range of a pixel model.

    Raises:
        InputError: the shift of one step is longer than the whole range.
    """
    length = config.step_size(num_steps)
    if config.normalize == "max" and length > PIXEL_RANGE:
        raise InputError(
            f"a step shifts a pixel by up to {length:g}, more than the whole range of an image ([-1, 1]): "
            "lower eta, or pass eta_total"
        )
