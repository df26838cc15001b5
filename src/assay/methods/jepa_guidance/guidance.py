"""JEPA guidance as a callback of diffusers' pipelines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from diffusers.callbacks import PipelineCallback
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance.adapters import (
    CallRecorder,
    DenoiserCall,
    PipelineAdapter,
    adapter_for,
)
from assay.methods.jepa_guidance.freezing import frozen
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.guidance_step import GuidanceStep
from assay.methods.jepa_guidance.guided_sampling import check_pixel_range
from assay.methods.jepa_guidance.jepa_shift import GuidanceReport, JEPAShift
from assay.methods.jepa_guidance.prediction import NoiseSchedule
from assay.methods.jepa_guidance.scorer import JEPAScorer


class JEPAGuidance(PipelineCallback):
    """Steers a pipeline's samples along the gradient of JEPA-SCORE.

    ```python
    guidance = JEPAGuidance(scorer, JEPAGuidanceConfig(eta_total=1.0))
    images = guidance.run(pipe, prompt="a bird", num_inference_steps=50).images
    ```

    `run` calls any pipeline that has an adapter: Stable Diffusion 1.5, 2 and XL, Stable Diffusion 3, Flux,
    DiT, and pixel pipelines (DDPM, DDIM). Where the pipeline takes callbacks, one may also write

    ```python
    with guidance.attached(pipe):
        images = pipe("a bird", callback_on_step_end=guidance).images
    ```

    The shift before step i is made at the end of step i - 1, which is the same; only the first step cannot be
    reached (`report.unreachable` counts it). `report` says what happened.

    Args:
        scorer: the encoder's scorer.
        config: the settings.
        tiny_decoder: what `decode="tiny"` decodes with, an `AutoencoderTiny` for the pipeline's latents.

    Raises:
        InputError: the direction of the score is not known, or the tiny decoder is missing.
    """

    def __init__(
        self, scorer: JEPAScorer, config: JEPAGuidanceConfig, *, tiny_decoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        if (config.decode == "tiny") != (tiny_decoder is not None):
            raise InputError(
                "decode='tiny' and tiny_decoder go together: pass both, as in "
                "tiny_decoder=AutoencoderTiny.from_pretrained('madebyollin/taesd'), or neither"
            )
        self.scorer = scorer
        self.settings = config
        self._tiny_decoder = tiny_decoder
        self._shift = JEPAShift(scorer, config)
        self._adapter: PipelineAdapter | None = None
        self._recorder: CallRecorder | None = None

    @property
    def tensor_inputs(self) -> list[str]:
        """What the pipeline hands to the callback."""
        return ["latents"]

    @property
    def report(self) -> GuidanceReport:
        """What happened in the last run."""
        return self._shift.report

    def run(self, pipeline: Any, *positional: Any, **arguments: Any) -> Any:
        """Call a pipeline with guidance; returns what the pipeline returns.

        Args:
            pipeline: a pipeline of diffusers.
            positional: its arguments.
            arguments: its named arguments; a callback of yours runs before the guidance.

        Raises:
            InputError: the pipeline or its scheduler is not known, or guidance fails.
        """
        bound = inspect.signature(pipeline.__call__).bind(*positional, **arguments)
        bound.apply_defaults()
        with self.attached(pipeline, bound.arguments) as adapter:
            if not adapter.has_callback:
                with self._after_each_step(pipeline.scheduler, adapter):
                    return pipeline(*positional, **arguments)
            callback, names = self._with_own(
                arguments.pop("callback_on_step_end", None),
                arguments.pop("callback_on_step_end_tensor_inputs", ["latents"]),
            )
            return pipeline(
                *positional,
                **arguments,
                callback_on_step_end=callback,
                callback_on_step_end_tensor_inputs=names,
            )

    @contextmanager
    def attached(
        self, pipeline: Any, arguments: Mapping[str, Any] | None = None
    ) -> Iterator[PipelineAdapter]:
        """Watch a pipeline's denoiser while the block runs; the pipeline is as it was afterwards.

        Args:
            pipeline: a pipeline of diffusers.
            arguments: what it is called with, where the adapter has to know (`run` passes it).

        Raises:
            InputError: the pipeline or its scheduler is not known, or another run is under way.
        """
        if self._adapter is not None:
            raise InputError("this guidance is attached to a pipeline already; make another one")
        adapter = adapter_for(pipeline, arguments)
        if arguments is None and not adapter.has_callback:
            raise InputError(
                f"{type(pipeline).__name__} takes no callback: call it as guidance.run(pipeline, ...)"
            )
        NoiseSchedule(pipeline.scheduler)
        decoder = self._tiny_decoder or adapter.decoder
        modules = [module for module in (adapter.denoiser, decoder) if module is not None]
        self._recorder = CallRecorder(adapter.denoiser)
        self._adapter = adapter
        self._shift.report = GuidanceReport()
        try:
            with ExitStack() as stack:
                for module in modules:
                    stack.enter_context(frozen(module, checkpoint=self.settings.checkpoint))
                yield adapter
        finally:
            self._recorder.close()
            self._adapter = self._recorder = None

    def callback_fn(
        self, pipeline: Any, step_index: int, timestep: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Shift the latents at the end of a step; called by the pipeline.

        Raises:
            InputError: the guidance is not attached to the pipeline.
        """
        adapter = self._adapter
        if adapter is None or adapter.pipeline is not pipeline:
            raise InputError(
                "the callback alone cannot call the pipeline's denoiser: use guidance.run(pipeline, ...), or "
                "call the pipeline inside `with guidance.attached(pipeline):`"
            )
        callback_kwargs["latents"] = self._shifted(adapter, step_index, timestep, callback_kwargs["latents"])
        return callback_kwargs

    def _shifted(self, adapter: PipelineAdapter, index: int, timestep: Any, sample: Tensor) -> Tensor:
        """The latents at the end of step `index`, shifted for the next step (or for this one)."""
        assert self._recorder is not None
        calls, self._recorder.calls = self._recorder.calls, []
        num_steps = adapter.num_steps
        guided = self.settings.guided_steps(num_steps)
        after = self.settings.placement == "after"
        if not after and index == 0:
            self._shift.report.unreachable = int(0 in guided)
        target = index if after else index + 1
        if target not in guided or self.settings.step_size(num_steps) == 0:
            return sample
        if not calls:
            raise InputError("the pipeline did not call its denoiser in this step: guidance cannot repeat it")
        if adapter.decoder is None:
            check_pixel_range(self.settings, num_steps)
        schedule = NoiseSchedule(adapter.pipeline.scheduler)
        position = _position(schedule, index, timestep) + (0 if after else 1)
        latents = adapter.latents(sample)
        x_t = calls[0].sample[: len(latents)]
        x_t = schedule.from_model_input(x_t, schedule.level(position)) if after else latents
        step = self._step(adapter, calls, schedule, position, x_t)
        decoder = self._tiny_decoder or adapter.decoder
        with self._recorder.paused(), _upcast(decoder):
            shift = self._shift(replace(step, index=target, num_steps=num_steps))
        return adapter.restored(latents + shift.to(latents), sample)

    def _step(
        self,
        adapter: PipelineAdapter,
        calls: list[DenoiserCall],
        schedule: NoiseSchedule,
        position: int,
        x_t: Tensor,
    ) -> GuidanceStep:
        """The step of the scheduler's timestep `position`."""
        own = schedule.scheduler.timesteps[position]
        decoder = self._tiny_decoder or adapter.decoder

        def predict(x: Tensor, t: int | None = None) -> Tensor:
            level = schedule.level(position) if t is None else schedule.level_at(t)
            timestep = own if t is None else torch.full_like(own, t)
            return schedule.clean(adapter.predict(calls, schedule.model_input(x, level), timestep), x, level)

        def to_image(clean: Tensor) -> Tensor:
            if decoder is None:
                return clean / 2 + 0.5
            return adapter.decode(adapter.unpacked(clean, calls), decoder) / 2 + 0.5

        return GuidanceStep(
            x_t=x_t,
            t=own,
            index=position,
            num_steps=schedule.num_steps,
            predict=predict,
            to_image=to_image,
            alpha_bar=schedule.level(position).alpha_bar,
            alpha_bar_previous=schedule.level(position + 1).alpha_bar,
            variance=schedule.posterior_variance(position),
            alpha_bar_at=lambda t: schedule.level_at(t).alpha_bar,
        )

    @contextmanager
    def _after_each_step(self, scheduler: Any, adapter: PipelineAdapter) -> Iterator[None]:
        """Shift what the scheduler's step returns, for a pipeline that takes no callback."""
        original = scheduler.step
        index = 0

        # Pipelines look into the signature for the arguments that they may pass.
        @functools.wraps(original)
        def step(model_output: Tensor, timestep: Any, sample: Tensor, *others: Any, **named: Any) -> Any:
            nonlocal index
            result = original(model_output, timestep, sample, *others, **named)
            shifted = self._shifted(adapter, index, timestep, result[0])
            index += 1
            if isinstance(result, tuple):
                return shifted, *result[1:]
            return replace(result, prev_sample=shifted)

        scheduler.step = step
        try:
            yield
        finally:
            del scheduler.step

    def _with_own(self, callback: Any, names: list[str]) -> tuple[Any, list[str]]:
        """The user's callback followed by the guidance, and the tensors that both want."""
        if callback is None:
            return self, self.tensor_inputs
        wanted = getattr(callback, "tensor_inputs", names)

        def both(pipeline: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            changed = callback(pipeline, index, timestep, tensors)
            return self(pipeline, index, timestep, {**tensors, **changed})

        return both, [*wanted, *(name for name in self.tensor_inputs if name not in wanted)]


def _position(schedule: NoiseSchedule, index: int, timestep: Any) -> int:
    """Where in the scheduler's timesteps the pipeline's step `index` is: it may have left out the first."""
    timesteps = schedule.scheduler.timesteps
    found = (timesteps == torch.as_tensor(timestep).to(timesteps)).nonzero().flatten().tolist()
    # PNDM makes one timestep twice.
    return index if index in found or not found else found[0]


@contextmanager
def _upcast(decoder: nn.Module | None) -> Iterator[None]:
    """A VAE that overflows in half precision, in float32 while the block runs.

    The block must hold the backward pass too: it reads the parameters again.
    """
    config: Any = getattr(decoder, "config", None)
    if decoder is None or not getattr(config, "force_upcast", False):
        yield
        return
    dtype = next(decoder.parameters()).dtype
    half = dtype == torch.float16
    decoder.to(torch.float32 if half else None)
    try:
        yield
    finally:
        decoder.to(dtype if half else None)
