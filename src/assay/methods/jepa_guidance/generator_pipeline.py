"""The pipeline of the small generators: noise to pixels, with a class, a prompt, or neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError
from assay.lm import embed_texts
from assay.methods.jepa_guidance.generator_model import PixelMLP, PixelUNet
from assay.methods.jepa_guidance.progress_bars import without_library_bars


class PixelDiffusionPipeline(DiffusionPipeline):
    """A diffusion model of pixels; `DiffusionPipeline.from_pretrained` loads its folder after `import assay`.

    Args:
        unet: the denoiser, a `PixelUNet` or a `PixelMLP`.
        scheduler: any of diffusers' that predicts from noise, e.g. `DDPMScheduler`.
        text_encoder: a transformers encoder whose mean over tokens is the condition, for models that were
            trained with captions.
        tokenizer: its tokenizer.
        class_names: what the classes are called, for class-conditional models.
    """

    model_cpu_offload_seq = "text_encoder->unet"
    _optional_components = ["text_encoder", "tokenizer"]  # noqa: RUF012
    _callback_tensor_inputs = ["latents"]  # noqa: RUF012

    def __init__(
        self,
        unet: PixelUNet | PixelMLP,
        scheduler: Any,
        text_encoder: Any = None,
        tokenizer: Any = None,
        class_names: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler, text_encoder=text_encoder, tokenizer=tokenizer)
        self.register_to_config(class_names=class_names)

    def encode_prompt(self, prompts: Sequence[str]) -> Float[Tensor, "prompts width"]:
        """The sentence embeddings of prompts.

        Raises:
            InputError: the pipeline has no text encoder.
        """
        if self.text_encoder is None or self.tokenizer is None:
            raise InputError("this generator takes no prompts: it was trained without captions")
        return embed_sentences(self.text_encoder, self.tokenizer, prompts)

    def class_index(self, name: str) -> int:
        """The number of a class, given by its name or by its number.

        Raises:
            InputError: the generator knows no classes, or not this one.
        """
        classes = self.unet.config.get("num_classes")
        if classes is None:
            raise InputError("this generator knows no classes: it was trained without labels")
        names = self.config.get("class_names") or [str(index) for index in range(classes)]
        if name in names:
            return names.index(name)
        if name.isdecimal() and int(name) < classes:
            return int(name)
        raise InputError(f"there is no class {name!r}; the classes are {', '.join(names)}")

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int = 1,
        *,
        class_labels: Int[Tensor, " batch"] | Sequence[int] | int | None = None,
        prompt: str | Sequence[str] | None = None,
        guidance_scale: float = 1.0,
        num_inference_steps: int = 50,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Float[Tensor, "batch channels height width"] | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable[..., dict[str, Any]] | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
    ) -> ImagePipelineOutput | tuple[Any]:
        """Sample images.

        Args:
            batch_size: images, if neither classes nor prompts say how many.
            class_labels: a class, or one for each image.
            prompt: a caption, or one for each image.
            guidance_scale: of classifier-free guidance; 1 is the condition alone.
            num_inference_steps: denoising steps.
            generator: of the noise; a list gives each image its own.
            latents: the initial noise.
            output_type: "pil", "np" or "pt".
            return_dict: False returns a tuple.
            callback_on_step_end: as in diffusers' pipelines.
            callback_on_step_end_tensor_inputs: "latents" is the only one.

        Raises:
            InputError: a condition that the generator was not trained with.
        """
        condition, batch = self._condition(batch_size, class_labels, prompt)
        size = self.unet.config.sample_size
        shape = (batch, self.unet.config.in_channels, size, size)
        device = self._execution_device
        x = latents
        if x is None:
            x = randn_tensor(shape, generator=generator, device=device, dtype=self.unet.dtype)
        self.scheduler.set_timesteps(num_inference_steps, device=device)
        x = x.to(device) * getattr(self.scheduler, "init_noise_sigma", 1.0)
        bar: Any = self.progress_bar
        with bar(total=num_inference_steps) as shown:
            for index, time in enumerate(self.scheduler.timesteps):
                prediction = self._predict(x, time, condition, guidance_scale)
                options = {"generator": generator} if "generator" in _parameters(self.scheduler.step) else {}
                x = self.scheduler.step(prediction, time, x, **options).prev_sample
                if callback_on_step_end is not None:
                    inputs = dict.fromkeys(callback_on_step_end_tensor_inputs, x)
                    x = callback_on_step_end(self, index, time, inputs).pop("latents", x)
                shown.update()
        images = (x / 2 + 0.5).clamp(0, 1)
        result: Any = images
        if output_type != "pt":
            result = images.cpu().permute(0, 2, 3, 1).float().numpy()
            if output_type == "pil":
                result = self.numpy_to_pil(result)
        self.maybe_free_model_hooks()
        return ImagePipelineOutput(images=result) if return_dict else (result,)

    def _condition(
        self, batch: int, class_labels: Any, prompt: str | Sequence[str] | None
    ) -> tuple[dict[str, Tensor], int]:
        if class_labels is not None and prompt is not None:
            raise InputError("give classes or prompts, not both")
        device = self._execution_device
        if class_labels is not None:
            labels = torch.as_tensor(class_labels, device=device).reshape(-1)
            labels = labels.expand(batch) if len(labels) == 1 else labels
            return {"class_labels": labels}, len(labels)
        if prompt is not None:
            texts = self.encode_prompt([prompt] if isinstance(prompt, str) else prompt).to(device)
            texts = texts.expand(batch, -1) if len(texts) == 1 else texts
            return {"encoder_hidden_states": texts}, len(texts)
        return {}, batch

    def _predict(
        self, latents: Tensor, time: Tensor, condition: dict[str, Tensor], guidance_scale: float
    ) -> Tensor:
        inputs = latents
        if hasattr(self.scheduler, "scale_model_input"):
            inputs = self.scheduler.scale_model_input(latents, time)
        prediction = self.unet(inputs, time, **condition).sample
        if condition and guidance_scale != 1:
            free = self.unet(inputs, time).sample
            prediction = free + guidance_scale * (prediction - free)
        return prediction


def _parameters(function: Callable[..., Any]) -> set[str]:
    import inspect

    return set(inspect.signature(function).parameters)


def embed_sentences(
    text_encoder: Any, tokenizer: Any, sentences: Sequence[str]
) -> Float[Tensor, "sentences width"]:
    """Sentence embeddings of length 1: the mean of the last layer over the tokens of a sentence, normalised.

    Args:
        text_encoder: a transformers encoder of text.
        tokenizer: its tokenizer.
        sentences: the texts.

    Raises:
        InputError: there is no sentence, or one is empty.
    """
    if not sentences or not all(sentence.strip() for sentence in sentences):
        raise InputError("a caption is empty: every image needs one")
    return torch.from_numpy(embed_texts(tokenizer, text_encoder, sentences)).to(text_encoder.device)


def load_generator(folder: Path | str, dtype: torch.dtype = torch.float32) -> Any:
    """A pipeline from a folder or a hub id, ours or any of diffusers'.

    Args:
        folder: what `DiffusionPipeline.from_pretrained` takes.
        dtype: of the pipeline.

    Raises:
        InputError: there is no pipeline.
    """
    local = Path(folder)
    if local.is_dir() and not (local / "model_index.json").is_file():
        raise InputError(
            f"{folder} holds no generator (model_index.json is missing): name a folder that "
            "train-generator made, or any diffusers pipeline"
        )
    try:
        with without_library_bars():
            pipeline = DiffusionPipeline.from_pretrained(str(folder), use_safetensors=True, dtype=dtype)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def register() -> None:
    """Let diffusers' `DiffusionPipeline.from_pretrained` find the pipeline where it looks for all: by name.

    `import assay` lets this run once diffusers' pipelines have been imported (see `assay.plugins`).
    """
    import diffusers

    setattr(diffusers, PixelDiffusionPipeline.__name__, PixelDiffusionPipeline)


register()
