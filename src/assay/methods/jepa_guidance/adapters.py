"""What guidance has to know of a diffusers pipeline: its denoiser, its conditions, and its decoder.

A pipeline hands a callback the latents and a few embeddings, which is too little to call the denoiser again
(Flux needs positions, guidance and pooled embeddings as well). So the call itself is recorded as the pipeline
makes it, by a forward hook, and repeated with other latents and another timestep.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.errors import InputError


@dataclass(frozen=True)
class DenoiserCall:
    """The arguments of one call of a denoiser, by name."""

    arguments: Mapping[str, Any]

    def repeated(self, denoiser: nn.Module, sample: Tensor, timestep: Tensor, time_scale: float) -> Tensor:
        """Call the denoiser again with another sample and timestep."""
        arguments = dict(self.arguments)
        arguments[next(iter(arguments))] = sample.to(self.sample.dtype)
        arguments["timestep"] = _like(arguments["timestep"], timestep, time_scale)
        output = denoiser(**arguments)
        return output[0] if isinstance(output, tuple) else output.sample

    @property
    def sample(self) -> Tensor:
        """What the denoiser saw."""
        return next(iter(self.arguments.values()))


def _like(recorded: Any, timestep: Tensor, time_scale: float) -> Any:
    """A timestep in the form in which the pipeline passed the earlier one."""
    if isinstance(recorded, Tensor):
        return (timestep.to(recorded.device) * time_scale).to(recorded.dtype).expand(recorded.shape)
    return type(recorded)(float(timestep) * time_scale)


class CallRecorder:
    """The calls that a pipeline made of its denoiser in the running step."""

    def __init__(self, denoiser: nn.Module) -> None:
        self._signature = inspect.signature(denoiser.forward)
        self._handle = denoiser.register_forward_pre_hook(self._record, with_kwargs=True)
        self._paused = False
        self.calls: list[DenoiserCall] = []

    def _record(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not self._paused:
            bound = self._signature.bind(*arguments, **keywords)
            self.calls.append(DenoiserCall(dict(bound.arguments)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in the block: the calls are the guidance's own."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()


class PipelineAdapter:
    """A pipeline of Stable Diffusion 1.5 or 2, and what other pipelines do differently.

    Args:
        pipeline: the pipeline.
        arguments: what it is called with (defaults included), for what it does not keep itself.

    Raises:
        InputError: the pipeline is in a state in which its denoiser cannot be called again.
    """

    denoiser_name = "unet"
    # The denoiser's timestep in units of the scheduler's.
    time_scale = 1.0

    def __init__(self, pipeline: Any, arguments: Mapping[str, Any] | None = None) -> None:
        self.pipeline = pipeline
        self.arguments = {} if arguments is None else arguments
        self.denoiser: nn.Module = getattr(pipeline, self.denoiser_name)
        obstacles = {
            "has a cache enabled, which guidance would corrupt": getattr(
                self.denoiser, "is_cache_enabled", False
            ),
            "is offloaded, and a gradient must flow through it": hasattr(self.denoiser, "_hf_hook"),
            "is a compiled wrapper, whose calls cannot be recorded": hasattr(self.denoiser, "_orig_mod"),
        }
        for obstacle, present in obstacles.items():
            if present:
                raise InputError(f"the pipeline's {self.denoiser_name} {obstacle}: undo that first")

    @property
    def has_callback(self) -> bool:
        """Whether the pipeline calls something at the end of each step."""
        return "callback_on_step_end" in inspect.signature(type(self.pipeline).__call__).parameters

    @property
    def num_steps(self) -> int:
        """Steps of the running call."""
        return self.pipeline.num_timesteps

    @property
    def decoder(self) -> nn.Module | None:
        """The VAE; None for pixel models."""
        return self.pipeline.vae

    def latents(self, sample: Tensor) -> Tensor:
        """The latents in what the scheduler returned."""
        return sample

    def restored(self, latents: Tensor, sample: Tensor) -> Tensor:
        """What the scheduler returned, with other latents in it."""
        return latents

    def predict(self, calls: list[DenoiserCall], x: Tensor, timestep: Tensor) -> Tensor:
        """The denoiser's output, classifier-free guidance included."""
        call = calls[0]
        rows = len(call.sample)
        if rows == len(x):
            return call.repeated(self.denoiser, x, timestep, self.time_scale)
        if rows != 2 * len(x):
            raise InputError(
                f"the pipeline called its denoiser with {rows} rows for {len(x)} images; guidance knows "
                "plain calls and classifier-free guidance"
            )
        output = call.repeated(self.denoiser, torch.cat([x, x]), timestep, self.time_scale)
        return self.combined(*output.chunk(2))

    def combined(self, first: Tensor, second: Tensor) -> Tensor:
        """Classifier-free guidance of the two halves of a batch."""
        output = first + self.pipeline.guidance_scale * (second - first)
        rescale = getattr(self.pipeline, "guidance_rescale", 0.0)
        if rescale:
            deviations = second.flatten(1).std(dim=1) / output.flatten(1).std(dim=1)
            factor = rescale * deviations + 1 - rescale
            output = output * factor.view(-1, *[1] * (output.dim() - 1))
        return output

    def unpacked(self, latents: Tensor, calls: list[DenoiserCall]) -> Tensor:
        """The latents on their grid."""
        return latents

    def decode(self, latents: Float[Tensor, "batch channels height width"], decoder: nn.Module) -> Tensor:
        """Images in [-1, 1] of clean latents."""
        config: Any = decoder.config
        shift = getattr(config, "shift_factor", None) or 0.0
        means, deviations = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
        if means is not None and deviations is not None:
            mean = torch.tensor(means).view(1, -1, 1, 1).to(latents)
            deviation = torch.tensor(deviations).view(1, -1, 1, 1).to(latents)
            latents = latents * deviation / config.scaling_factor + mean
        else:
            latents = latents / config.scaling_factor + shift
        dtype = next(decoder.parameters()).dtype
        return decoder.decode(latents.to(dtype), return_dict=False)[0]  # pyright: ignore[reportCallIssue]


class StableDiffusion3Adapter(PipelineAdapter):
    """Stable Diffusion 3 and 3.5: a transformer and flow matching."""

    denoiser_name = "transformer"

    def predict(self, calls: list[DenoiserCall], x: Tensor, timestep: Tensor) -> Tensor:
        """The denoiser's output; skip-layer guidance is not repeated."""
        return super().predict(calls[:1], x, timestep)


class FluxAdapter(PipelineAdapter):
    """Flux: packed latents, timesteps in [0, 1], and a second call for true classifier-free guidance."""

    denoiser_name = "transformer"
    time_scale = 1e-3

    def predict(self, calls: list[DenoiserCall], x: Tensor, timestep: Tensor) -> Tensor:
        """The denoiser's output, with the negative prompt if the pipeline uses one."""
        bound, *free = (call.repeated(self.denoiser, x, timestep, self.time_scale) for call in calls)
        if not free:
            return bound
        scale = self.arguments.get("true_cfg_scale")
        if scale is None:
            raise InputError(
                "the pipeline keeps its true_cfg_scale to itself: call it as guidance.run(pipeline, ...)"
            )
        return free[0] + scale * (bound - free[0])

    def unpacked(self, latents: Tensor, calls: list[DenoiserCall]) -> Tensor:
        """Patches of 2 x 2, laid out as the positions of the call say."""
        rows, columns = (int(n) + 1 for n in calls[0].arguments["img_ids"][:, 1:].amax(dim=0))
        grid = latents.unflatten(1, (rows, columns)).unflatten(3, (-1, 2, 2))
        return grid.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class DiTAdapter(PipelineAdapter):
    """Class-conditional DiT: conditions first, no callback, and latents kept twice."""

    denoiser_name = "transformer"

    @property
    def _doubled(self) -> bool:
        return self.arguments["guidance_scale"] > 1

    @property
    def num_steps(self) -> int:
        """Steps of the running call."""
        return len(self.pipeline.scheduler.timesteps)

    def latents(self, sample: Tensor) -> Tensor:
        """The first half: the second is a copy that the pipeline ignores."""
        return sample.chunk(2)[0] if self._doubled else sample

    def restored(self, latents: Tensor, sample: Tensor) -> Tensor:
        """Both halves."""
        return torch.cat([latents, latents]) if self._doubled else latents

    def combined(self, first: Tensor, second: Tensor) -> Tensor:
        """The conditional half comes first; learned variances are left out later."""
        return second + self.arguments["guidance_scale"] * (first - second)


class PixelAdapter(PipelineAdapter):
    """Pixel models (DDPM, DDIM and similar): no decoder, and no callback."""

    @property
    def num_steps(self) -> int:
        """Steps of the running call."""
        return len(self.pipeline.scheduler.timesteps)

    @property
    def decoder(self) -> None:
        """None: the sample is the image."""
        return None

    def combined(self, first: Tensor, second: Tensor) -> Tensor:
        """Classifier-free guidance with the scale that the pipeline was called with."""
        return first + self.arguments["guidance_scale"] * (second - first)

    def decode(self, latents: Float[Tensor, "batch channels height width"], decoder: nn.Module) -> Tensor:
        """The sample itself."""
        return latents


_ADAPTERS: dict[str, type[PipelineAdapter]] = {
    "StableDiffusionPipeline": PipelineAdapter,
    "StableDiffusionXLPipeline": PipelineAdapter,
    "StableDiffusion3Pipeline": StableDiffusion3Adapter,
    "FluxPipeline": FluxAdapter,
    "DiTPipeline": DiTAdapter,
}


def adapter_for(pipeline: Any, arguments: Mapping[str, Any] | None = None) -> PipelineAdapter:
    """The adapter of a pipeline.

    Args:
        pipeline: a pipeline of diffusers.
        arguments: what it is called with, defaults included.

    Raises:
        InputError: there is none for this pipeline.
    """
    for cls in type(pipeline).__mro__:
        if cls.__name__ in _ADAPTERS:
            return _ADAPTERS[cls.__name__](pipeline, arguments)
    if hasattr(pipeline, "unet") and not hasattr(pipeline, "vae"):
        return PixelAdapter(pipeline, arguments)
    raise InputError(
        f"guidance does not know {type(pipeline).__name__}; it knows {', '.join(_ADAPTERS)} and pixel "
        "pipelines with a unet and without a VAE (DDPMPipeline, DDIMPipeline)"
    )
