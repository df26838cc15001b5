"""The verbs of `assay proteus`: quantize, inspect, eval, bench, vet-generators and export-dense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.proteus.printing import (
    generator_cells,
    grouped,
    module_cells,
    print_comparison,
    print_result,
    progress,
)

# The exit code when a model was quantized and the result is not acceptable.
SUSPECT = 3
DEFAULT_TEXTS = ["generated", "python-docs", "shakespeare", "kjv"]

Quiet = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]


def quantize(
    model: str,
    *,
    out: Out,
    bits: Literal[2, 3, 4] = 2,
    window: int = 12,
    calib: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    calib_seqs: int = 32,
    seq_len: int = 192,
    pool: Literal["v1", "single"] = "v1",
    damp: float = 0.03,
    compensate: bool = True,
    distill: Literal["none", "block", "e2e", "both"] = "e2e",
    propagate: Literal["quantized", "fp"] = "quantized",
    keep: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    workers: int | None = None,
    cluster: str | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    accept_perplexity_ratio: float = 3.0,
    accept_divergence: float = 2.0,
    max_shard_size: str = "5GB",
    dtype: str | None = None,
    device: str | None = None,
    seed: int = 0,
    quiet: Quiet = False,
) -> int:
    """Quantize the linear layers of a language model, and write a folder that transformers loads.

    Ends with exit code 3, and the model in OUT.suspect, when perplexity or divergence on held-out text is not
    acceptable.

    Parameters
    ----------
    model
        A folder with a model, a hub id, or embedded for SmolLM2-135M-Instruct.
    out
        The folder to write. Finished modules are kept in OUT.job until the end.
    bits
        Bits a weight.
    window
        Bits of a trellis state, 4 to 16. Each more doubles the time of encoding; 16 is the best.
    calib
        Texts to calibrate on: generated (what the model writes itself), python-docs, shakespeare, kjv, or
        UTF-8 files; generated and the three embedded texts by default. Four fifths of a text are used; the
        rest is held out.
    calib_seqs
        How many sequences of them.
    seq_len
        Tokens in a sequence.
    pool
        Generators to choose from for each layer: v1 is the vetted pool, single its first member.
    damp
        Share of the mean diagonal that is added to the second moments.
    compensate
        Fit channel scales after encoding.
    distill
        Train scales against the original: block by block, end to end, both, or not at all.
    propagate
        Calibrate a block on what the quantized blocks before it give, or the original ones (fp).
    keep
        Modules to leave as they are, by path or parts of one, such as down_proj or layers.0.
    workers
        Modules that are quantized at once; all cores by default. It does not change the result.
    cluster
        Ray's address, or local: modules are quantized as tasks there. It does not change the result.
    resume
        Go on with the interrupted job of OUT; the other options must be the same.
    accept_perplexity_ratio
        The largest perplexity on held-out text, relative to the original's, that is accepted.
    accept_divergence
        The largest mean divergence from the original, in nats a token, that is accepted.
    max_shard_size
        Of the files with weights, such as 2GB.
    dtype
        Floating-point type to load the model in; its own by default. It is also that of what is not
        quantized.
    device
        Where to compute; a GPU when there is one.
    seed
        The seed of everything random.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay import lm
    from assay.methods.proteus.calibration import calibration_tokens, held_out_tokens
    from assay.methods.proteus.config import ProteusConfig
    from assay.methods.proteus.model_quantization import Conduct, quantize_model
    from assay.methods.proteus.report import Acceptable

    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: at least 1 is needed")
    config = ProteusConfig(
        bits=bits,
        window=window,
        pool=pool,
        damp=damp,
        compensate=compensate,
        distill=None if distill == "none" else distill,
        modules_to_not_convert=keep,
        seed=seed,
    )
    console = Console(quiet=quiet, highlight=False)
    texts = calib or DEFAULT_TEXTS
    with console.status(f"Loading {model} ..."):
        original, tokenizer = lm.load(model, device=device, dtype=dtype)
        tokens = calibration_tokens(original, tokenizer, texts, calib_seqs, seq_len, seed=seed)
        held_out = held_out_tokens(original, tokenizer, texts, max(8, len(texts)), seq_len, seed=seed)
    with progress(console, "Quantizing") as on_progress:
        report = quantize_model(
            original,
            tokenizer,
            config,
            calibration=tokens,
            out=out,
            held_out=held_out,
            acceptable=Acceptable(accept_perplexity_ratio, accept_divergence),
            conduct=Conduct(
                workers=workers,
                cluster=cluster,
                resume=resume,
                propagate="original" if propagate == "fp" else "quantized",
                max_shard_size=max_shard_size,
            ),
            on_progress=on_progress,
        )
    print_result(console, report)
    return SUSPECT if report.complaint else 0


def inspect(
    folder: Annotated[Path, Parameter(name="OUT")],
    *,
    verify: Annotated[bool, Parameter(negative=())] = False,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    as_json: Json = False,
) -> None:
    """Show what a quantized model holds: bits a weight, errors, bytes.

    Parameters
    ----------
    folder
        The folder that `assay proteus quantize` wrote.
    verify
        Read all packed layers and compare them with their checksums.
    every
        A line for every module, not one for each kind.
    as_json
        Print JSON.
    """
    from assay.methods.proteus.export import inspect_checkpoint

    facts = inspect_checkpoint(folder, verify=verify)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("module", "shape", "modules", "bits a weight", "error", "compensated", "kilobytes")
    for rows in grouped(facts["modules"], every):
        table.add_row(*module_cells(rows))
    console.print(table)
    console.print(
        f"{facts['packed_weights'] / 1e6:.1f} million weights at {facts['bits_per_weight']:.3f} bits: "
        f"{facts['packed_bytes'] / 1e6:.1f} MB of {facts['bytes'] / 1e6:.1f} MB"
    )
    if comparison := facts["comparison"]:
        print_comparison(console, comparison)
    if facts["complaint"]:
        console.print(
            f"Not acceptable when it was made: {facts['complaint']}", style="yellow", soft_wrap=True
        )
    if facts["verified"]:
        console.print(f"All {len(facts['modules'])} packed modules are what was written.")


def evaluate(
    folder: Annotated[Path, Parameter(name="OUT")],
    *,
    text: str,
    teacher: str | None = None,
    window: int = 512,
    windows: int | None = None,
    device: str | None = None,
    as_json: Json = False,
) -> None:
    """Measure perplexity on the held-out part of a text and, beside the original model, divergence.

    Parameters
    ----------
    folder
        The folder that `assay proteus quantize` wrote.
    text
        python-docs, shakespeare, kjv, or a UTF-8 file. Its last fifth is used, which quantize never
        calibrates on.
    teacher
        The original model: a folder, a hub id, or embedded.
    window
        Tokens that the model sees at once.
    windows
        How many windows at most; all by default.
    device
        Where to compute; a GPU when there is one.
    as_json
        Print JSON.
    """
    from dataclasses import asdict

    from rich.console import Console

    from assay import lm
    from assay.lm.scoring import encode
    from assay.methods.proteus.evaluation import compare
    from assay.methods.proteus.evaluation import windows as cut
    from assay.methods.proteus.export import load_packed

    if window < 2:
        raise InputError(f"--window {window}: at least 2 tokens are needed")
    part = lm.text(text).evaluation
    student, tokenizer = load_packed(folder, device)
    stretches = cut(encode(tokenizer, part), window, windows)
    original = None
    if teacher is not None:
        original, other = lm.load(teacher, device=device)
        if other.get_vocab() != tokenizer.get_vocab():
            raise InputError(f"{teacher} has another tokenizer than {folder}: it is not the original model")
    comparison = compare(student, original, stretches)
    if as_json:
        print(json.dumps(asdict(comparison), indent=2))
    else:
        print_comparison(Console(highlight=False), asdict(comparison))


def bench(
    folder: Annotated[Path, Parameter(name="OUT")],
    *,
    tokens: int = 32,
    repetitions: int = 30,
    device: str | None = None,
    as_json: Json = False,
) -> None:
    """Measure decoding here: products with one vector for every layer shape, and tokens a second.

    Parameters
    ----------
    folder
        The folder that `assay proteus quantize` wrote.
    tokens
        How many tokens to generate.
    repetitions
        Of each product; the median counts.
    device
        Where to compute; a GPU when there is one.
    as_json
        Print JSON.
    """
    from dataclasses import asdict

    from assay.methods.proteus.export import load_packed
    from assay.methods.proteus.kernels import backend
    from assay.methods.proteus.speed import dense_twin, layer_speeds, tokens_per_second

    if tokens < 1 or repetitions < 1:
        raise InputError(f"--tokens {tokens} and --repetitions {repetitions} must be at least 1")
    model, _ = load_packed(folder, device)
    speeds = layer_speeds(model, repetitions)
    packed = tokens_per_second(model, tokens)
    dense = tokens_per_second(dense_twin(model), tokens)
    kernels = backend(model.device)
    if as_json:
        facts = {"layers": [asdict(speed) for speed in speeds], "tokens_per_second": packed}
        print(json.dumps(facts | {"dense_tokens_per_second": dense, "kernels": kernels}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    name = str(model.dtype).removeprefix("torch.")
    table = Table("layer", "layers", "packed ms", "int8 ms", f"{name} ms", "packed kB", f"{name} kB")
    for speed in speeds:
        table.add_row(
            f"{speed.shape[0]} x {speed.shape[1]}",
            str(speed.layers),
            *(f"{value:.3f}" for value in (speed.packed, speed.packed_int8, speed.dense)),
            *(f"{value / 1e3:.0f}" for value in (speed.packed_bytes, speed.dense_bytes)),
        )
    console.print(table)
    console.print(f"{packed:.1f} tokens a second; {dense:.1f} with dense {name} weights")
    console.print(f"Kernels: {kernels}", soft_wrap=True)


def vet_generators(
    *,
    window: int = 12,
    bits: Literal[2, 3, 4] = 2,
    candidates: int = 400,
    seed: int = 0,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    quiet: Quiet = False,
) -> None:
    """Search generators for a pool: filter random ones by their scores, and rank them by coding error.

    Parameters
    ----------
    window
        Bits of a trellis state.
    bits
        Bits a weight.
    candidates
        How many to draw.
    seed
        The seed of draws and data.
    out
        A JSON file for the whole report.
    quiet
        Print nothing.
    """
    from rich.console import Console
    from rich.table import Table

    from assay.files import as_json, write_json
    from assay.methods.proteus.vetting import search

    console = Console(quiet=quiet, highlight=False)
    with console.status("Searching ...") as status:
        report = search(
            window,
            bits,
            candidates=candidates,
            seed=seed,
            on_progress=lambda stage, done, total: status.update(f"{stage}: {done} of {total}"),
        )
    if out is not None:
        write_json(out, as_json(report))
    table = Table("multiplier", "addend", "shift", "signs", "error")
    for entry in report["pool"]:
        table.add_row(*generator_cells(entry))
    console.print(f"{report['accepted']} of {report['candidates']} candidates passed the thresholds")
    console.print(table)


def export_dense(
    folder: Annotated[Path, Parameter(name="OUT")],
    *,
    out: Out,
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
    quiet: Quiet = False,
) -> None:
    """Write a quantized model with ordinary dense weights, for software without the plug-in.

    Parameters
    ----------
    folder
        The folder that `assay proteus quantize` wrote.
    out
        The folder to write; it must not exist.
    dtype
        The floating-point type of all weights.
    quiet
        Print nothing.
    """
    import torch
    from rich.console import Console

    from assay.methods.proteus.export import export_dense as export

    console = Console(quiet=quiet, highlight=False)
    with console.status("Decoding ..."):
        export(folder, out, getattr(torch, dtype))
    console.print(f"Dense model in {out}", soft_wrap=True)
