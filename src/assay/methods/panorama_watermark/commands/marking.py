"""`assay panorama-watermark keygen`, `embed` and `detect`: the mark itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.panorama_watermark.commands.parts import (
    CodeName,
    Flag,
    Out,
    Sources,
    check_targets,
    follow,
    key_of,
    placement_of,
    print_json,
    raise_failures,
)


def keygen(out: Annotated[Path, Parameter(name="KEYFILE")], *, quiet: Flag = False) -> None:
    """Make a new secret key, in a file that only its owner can read.

    Parameters
    ----------
    out
        The file to write; it must not exist. Whoever has it can find, forge and remove the marks.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.panorama_watermark.keys import Key

    key = Key.generate()
    key.write(out)
    Console(quiet=quiet, highlight=False).print(f"key {key.id} in {out}; keep it secret", soft_wrap=True)


def embed(
    sources: Sources,
    *,
    out: Out,
    payload: str,
    key_file: Path | None = None,
    passphrase: Flag = False,
    hex: Flag = False,
    code: CodeName = "bch127_64",
    band: Literal["auto", "low", "mid", "high"] = "auto",
    psnr: float = 42.0,
    min_psnr: float = 39.0,
    margin: float | None = None,
    texture: Flag = False,
    allow_weak: Flag = False,
    quality: int | None = None,
    force: Flag = False,
    cropped_area: str | None = None,
    engine: Path | None = None,
    c2pa: Flag = False,
    jobs: int = 1,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Mark panoramas with a payload that no rotation of the sphere removes.

    Every written file is read again to see that the mark is there. Files that an earlier run finished are
    left alone.

    Parameters
    ----------
    sources
        Panoramas (JPEG, PNG, WebP, TIFF, EXR, HDR) or folders of them.
    out
        The folder for the marked files, in their own formats, and their reports.
    payload
        What to write: text, or hexadecimal digits with --hex.
    key_file
        The key that `keygen` made.
    passphrase
        Ask for a passphrase instead (or read a line from standard input).
    hex
        The payload is hexadecimal.
    code
        The error-correcting code; bch127_64 holds 5 bytes, bch255_71 6 (sturdier), bch255_131 13 and
        bch511_259 29.
    band
        Where in the spectrum; by the image's height by default.
    psnr
        The fidelity to spend, as WS-PSNR in dB.
    min_psnr
        Fidelity gives way down to this where the mark would be too weak.
    margin
        A margin to reach, in grey levels, instead of a fidelity to spend.
    texture
        Put more of the change where the image is busy.
    allow_weak
        Mark also where the margin cannot be reached.
    quality
        Of JPEG and WebP; the source's by default, at least 95. Under 30 needs --force.
    force
        Allow a quality under 30.
    cropped_area
        LEFT,TOP,FULL_WIDTH,FULL_HEIGHT in pixels: where a partial panorama without GPano metadata lies.
    engine
        A folder that `train` made: mark with a learned engine.
    c2pa
        Also write a C2PA manifest definition with a soft-binding assertion beside every file.
    jobs
        Processes.
    json
        Print the reports as JSON lines.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.panorama_watermark.batch import (
        Settings,
        embed_file,
        image_files,
        payload_of,
        run_batch,
    )
    from assay.methods.panorama_watermark.bch import find_code
    from assay.methods.panorama_watermark.frames import check_length

    data = payload_of(payload, hex)
    check_length(data, find_code(code))
    if quality is not None and quality < 30 and not force:
        raise InputError(
            f"quality {quality} removes much of the image and of the mark: at least 30, or --force"
        )
    settings = Settings(
        key_of(key_file, passphrase), data, code, band, psnr, min_psnr, margin, texture, allow_weak, quality,
        placement_of(cropped_area), engine, c2pa,
    )  # fmt: skip
    settings.watermarker()
    files = [(source, out / relative) for source, relative in image_files(sources)]
    check_targets(files)
    console = Console(quiet=quiet or json, highlight=False)
    outcomes = follow(run_batch(embed_file, files, settings, jobs), len(files), "Marking", console)
    for outcome in outcomes:
        print_json(outcome, json and not quiet)
        if outcome.error is None:
            report = outcome.report
            state = (
                "already marked" if report.get("skipped") else f"{float(report['ws_psnr']):.1f} dB WS-PSNR"
            )
            console.print(f"{report['output']}: {state}, band {report['band']}", soft_wrap=True)
    raise_failures(outcomes)


def detect(
    sources: Sources,
    *,
    key_file: Path | None = None,
    passphrase: Flag = False,
    payload: str | None = None,
    hex: Flag = False,
    code: CodeName = "bch127_64",
    band: Literal["auto", "low", "mid", "high"] = "auto",
    cropped_area: str | None = None,
    engine: Path | None = None,
    jobs: int = 1,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Look for the mark in panoramas. Exit code 0: found in all of them; 1: missing in some; 2: an error.

    Parameters
    ----------
    sources
        Panoramas or folders of them.
    key_file
        The key that they were marked with.
    passphrase
        Ask for a passphrase instead (or read a line from standard input).
    payload
        Test for this payload, which works at more damage than reading an unknown one.
    hex
        The payload is hexadecimal.
    code
        The code that they were marked with.
    band
        All bands are tried by default.
    cropped_area
        LEFT,TOP,FULL_WIDTH,FULL_HEIGHT in pixels: where a partial panorama without GPano metadata lies.
    engine
        The learned engine that they were marked with.
    jobs
        Processes.
    json
        Print JSON lines.
    quiet
        Print nothing; the exit code tells.
    """
    from rich.console import Console

    from assay.methods.panorama_watermark.batch import (
        Settings,
        detect_file,
        image_files,
        payload_of,
        run_batch,
    )
    from assay.methods.panorama_watermark.bch import find_code
    from assay.methods.panorama_watermark.frames import check_length

    wanted = None if payload is None else payload_of(payload, hex)
    if wanted is not None:
        check_length(wanted, find_code(code))
    settings = Settings(
        key_of(key_file, passphrase),
        wanted,
        code,
        band,
        cropped_area=placement_of(cropped_area),
        engine=engine,
    )
    settings.watermarker()
    files = [(source, None) for source, _ in image_files(sources)]
    console = Console(quiet=quiet or json, highlight=False)
    outcomes = follow(run_batch(detect_file, files, settings, jobs), len(files), "Looking", console)
    for outcome in outcomes:
        print_json(outcome, json and not quiet)
        if outcome.error is None:
            console.print(_verdict(outcome.report), soft_wrap=True)
    raise_failures(outcomes)
    if not all(outcome.report["found"] for outcome in outcomes):
        raise SystemExit(1)


def _verdict(report: dict) -> str:
    name, band = report["source"], report["band"]
    if report["payload"] is not None:
        shown = f"{report['text']!r} " if report["text"] is not None else ""
        return (
            f"{name}: payload {shown}(hex {report['payload']}), {report['bit_errors_corrected']} bits "
            f"corrected, band {band}; by chance with probability {report['p_value']:.1e} at most"
        )
    if report["found"]:
        return (
            f"{name}: the payload is there, band {band}; by chance with probability {report['p_value']:.1e}"
        )
    return (
        f"{name}: not found (p = {report['p_value']:.2g}; false-positive rate "
        f"{report['false_positive_rate']:.1e})"
    )
