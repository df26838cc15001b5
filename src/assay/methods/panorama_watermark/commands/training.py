"""`assay panorama-watermark train`: a learned engine from a folder of panoramas."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from assay.methods.panorama_watermark.commands.parts import CodeName, Flag, Out, Sources, key_of


def train(
    sources: Sources,
    *,
    out: Out,
    code: CodeName = "bch127_64",
    band: Literal["low", "mid", "high"] = "mid",
    key_file: Path | None = None,
    passphrase: Flag = False,
    steps: int = 3000,
    batch: int = 16,
    ws_psnr: float = 42.0,
    device: str = "cpu",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Train a learned engine on a folder of panoramas, for one key, code and band.

    Parameters
    ----------
    sources
        Panoramas or folders of them; thousands for an engine that is to be used.
    out
        The folder to save the engine in.
    code
        The error-correcting code; it decides the number of bits.
    band
        Where in the spectrum.
    key_file
        The key.
    passphrase
        Ask for a passphrase instead (or read a line from standard input).
    steps
        Optimiser steps.
    batch
        Images a step.
    ws_psnr
        Fidelity that every training image is marked at, in dB.
    device
        cpu or cuda.
    seed
        The seed of everything random.
    quiet
        Print nothing.
    """
    from rich.console import Console
    from rich.progress import Progress

    from assay.errors import require
    from assay.methods.panorama_watermark import LEARNED_EXTRA
    from assay.methods.panorama_watermark.batch import image_files

    for library in ("torch", "safetensors"):
        require(library, extra=LEARNED_EXTRA)
    from assay.methods.panorama_watermark.learned import train_engine

    console = Console(quiet=quiet, highlight=False)
    key = key_of(key_file, passphrase)
    paths = [source for source, _ in image_files(sources)]
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("Training", total=steps)
        engine, history = train_engine(
            paths,
            key,
            code=code,
            band=band,
            steps=steps,
            batch=batch,
            ws_psnr=ws_psnr,
            device=device,
            seed=seed,
            on_step=lambda: progress.advance(task),
        )
    engine.save(out)
    console.print(
        f"{len(paths)} panoramas, {steps} steps: bit accuracy {history[-1]['bit_accuracy']:.3f} in training"
    )
    console.print(f"Saved to {out}", soft_wrap=True)
