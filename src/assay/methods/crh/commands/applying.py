"""`assay crh steer` and `assay crh export`: the axis at work, here and in other tools."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.crh.commands.parts import Flag, Folder, Out, Position, load_model, read_fit, saved_detector
from assay.methods.crh.printing import describe_strength, plain, verdict

if TYPE_CHECKING:
    from assay.methods.crh.cylinder import Cylinder


def steer(
    *,
    cylinder: Folder,
    prompt: Annotated[list[str], Parameter(consume_multiple=True)],
    strength: str = "auto",
    position: Position | None = None,
    max_new_tokens: int = 40,
    temperature: float = 0.0,
    model: str | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Answer prompts with and without steering along the axis.

    Parameters
    ----------
    cylinder
        The folder that `assay crh fit` saved.
    prompt
        One or more prompts.
    strength
        auto (the recommended one), a length, or a multiple of the mean difference, as in 1.5x; below zero it
        pushes away from the concept.
    position
        Which tokens are steered; by default those of the fit.
    max_new_tokens
        The length of the answers.
    temperature
        0 for greedy answers.
    model
        Another place of the same model.
    seed
        Of the sampling.
    device
        Where the model runs.
    """
    from rich.console import Console

    from assay.methods.crh.calibration import check_model
    from assay.methods.crh.generation import replies
    from assay.methods.crh.steering import steer as steering

    console = Console(highlight=False)
    if not prompt:
        raise InputError("--prompt holds no prompt")
    fitted = read_fit(cylinder)
    length = _strength(strength, fitted)
    loaded, tokenizer = load_model(console, fitted, model, device)
    check_model(loaded, fitted)
    options: dict[str, Any] = {
        "template": fitted.facts["template"],
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    where = position or fitted.facts["steered"]
    unsteered = replies(loaded, tokenizer, prompt, **options)
    with steering(loaded, length * fitted.axis, fitted.layer, position=where):
        steered = replies(loaded, tokenizer, prompt, **options)
    if fitted.strengths is not None:
        describe_strength(console, fitted.recommend_strength(), fitted)
    console.print(
        f"layer {fitted.layer}, {where} tokens, strength {length:.3g} "
        f"({length / fitted.axis_norm:.2f} mean differences)"
    )
    if where != fitted.facts["steered"] and strength == "auto":
        console.print(
            f"The strength was measured for {fitted.facts['steered']} tokens, not for {where}.",
            style="yellow",
        )
    detector = saved_detector(fitted.facts)
    for question, before, after in zip(prompt, unsteered, steered, strict=True):
        console.print(f"\n[bold]{plain(question)}[/bold]", soft_wrap=True)
        console.print(f"unsteered{verdict(detector, before)}: {plain(before)}", soft_wrap=True)
        console.print(f"steered{verdict(detector, after)}: {plain(after)}", soft_wrap=True)


def export(
    *,
    cylinder: Folder,
    out: Out,
    format: Literal["gguf", "safetensors", "steering-vectors"],
    strength: str = "auto",
    quiet: Flag = False,
) -> None:
    """Write the steering vector for another tool.

    Parameters
    ----------
    cylinder
        The folder that `assay crh fit` saved.
    out
        The file to write.
    format
        gguf: a control vector for llama.cpp, ollama and repeng. safetensors: one array, facts in its header.
        steering-vectors: arrays by layer for `steering_vectors.SteeringVector`.
    strength
        auto (the recommended one), a length, or a multiple of the mean difference, as in 1.5x; it is part of
        the vector, so that the tool's own scale is 1.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.crh.artifact import load_cylinder
    from assay.methods.crh.export import write_gguf, write_layers, write_safetensors

    console = Console(quiet=quiet, highlight=False)
    fitted = load_cylinder(cylinder)
    length = _strength(strength, fitted)
    if format == "gguf":
        write_gguf(fitted, out, strength=length)
        hint = f"llama-cli -m MODEL.gguf --control-vector {out}"
    elif format == "safetensors":
        write_safetensors(fitted, out, strength=length)
        hint = f"safetensors.torch.load_file({str(out)!r})['steering_vector']"
    else:
        write_layers(fitted, out, strength=length)
        hint = (
            f"SteeringVector({{int(k): v for k, v in safetensors.torch.load_file({str(out)!r}).items()}}, "
            "'decoder_block')"
        )
    console.print(
        f"{out}: added to the output of block {fitted.layer}, strength {length:.3g}", soft_wrap=True
    )
    console.print(f"Use it with: {plain(hint)}", soft_wrap=True)


def _strength(text: str, cylinder: Cylinder) -> float:
    from assay.methods.crh.export import default_strength

    if text == "auto":
        return default_strength(cylinder)
    try:
        length = float(text[:-1]) * cylinder.axis_norm if text.endswith("x") else float(text)
    except ValueError:
        length = math.nan
    if not math.isfinite(length):
        raise InputError(f"--strength {text!r} must be auto, a length such as 12.5, or 1.5x")
    return length
