"""Work on many files: which ones, in how many processes, what was done already, and what went wrong."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from assay.errors import InputError, require
from assay.files import replacing, write_json
from assay.methods.panorama_watermark import LEARNED_EXTRA
from assay.methods.panorama_watermark.frames import as_payload
from assay.methods.panorama_watermark.gpano import Placement
from assay.methods.panorama_watermark.images import SUFFIXES, read_image, write_image
from assay.methods.panorama_watermark.keys import Key
from assay.methods.panorama_watermark.watermarker import Watermarker, finite

C2PA_ALGORITHM = "io.assay.panorama.1"


@dataclass(frozen=True)
class Settings:
    """What `embed` and `detect` do to every file; picklable, and its text forms hide the key."""

    key: Key
    payload: bytes | None = None
    code: str = "bch127_64"
    band: str = "auto"
    psnr: float = 42.0
    min_psnr: float = 39.0
    margin: float | None = None
    texture: bool = False
    allow_weak: bool = False
    quality: int | None = None
    cropped_area: Placement | None = None
    engine: Path | None = None
    c2pa: bool = False

    def watermarker(self) -> Watermarker:
        """The watermarker of these settings."""
        if self.engine is not None:
            for library in ("torch", "safetensors"):
                require(library, extra=LEARNED_EXTRA)
            from assay.methods.panorama_watermark.learned import LearnedEngine

            engine: Any = LearnedEngine.load(self.engine)
        else:
            engine = "closed_form"
        return Watermarker(
            self.key,
            engine=engine,
            band=self.band,
            code=self.code,
            psnr=self.psnr,
            min_psnr=self.min_psnr,
            margin=self.margin,
            mask="texture" if self.texture else None,
            allow_weak=self.allow_weak,
        )

    def fingerprint(self, source: Path) -> dict[str, Any]:
        """What decides the marked file: kept in its report, so that a finished file is known as such."""
        assert self.payload is not None
        return {
            "key_id": self.key.id,
            "payload_sha256": hashlib.sha256(self.payload).hexdigest(),
            "source_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "code": self.code,
            "band": self.band,
            "psnr": self.psnr,
            "min_psnr": self.min_psnr,
            "margin": self.margin,
            "mask": "texture" if self.texture else None,
            "allow_weak": self.allow_weak,
            "cropped_area": asdict(self.cropped_area) if self.cropped_area else None,
            "engine": str(self.engine) if self.engine else "closed_form",
            "quality": self.quality,
        }


@dataclass(frozen=True)
class Outcome:
    """What happened to one file: its report, or an error; and warnings."""

    source: Path
    report: dict[str, Any]
    error: str | None = None
    warnings: tuple[str, ...] = ()


def image_files(inputs: Sequence[Path]) -> list[tuple[Path, Path]]:
    """The image files among files and folders (searched through), each with its path relative to the input.

    Raises:
        InputError: an input doesn't exist, or no image is found.
    """
    found: list[tuple[Path, Path]] = []
    for given in inputs:
        if given.is_dir():
            inside = sorted(p for p in given.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            found += [(path, path.relative_to(given)) for path in inside]
        elif given.exists():
            found.append((given, Path(given.name)))
        else:
            raise InputError(f"{given} doesn't exist")
    if not found:
        raise InputError(f"no images ({', '.join(SUFFIXES)}) in {', '.join(map(str, inputs))}")
    return found


def report_path(output: Path) -> Path:
    """Where the report of a marked file stands: beside it."""
    return output.with_name(output.name + ".report.json")


def _is_finished(output: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    try:
        report = json.loads(report_path(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(report, dict) and report.get("fingerprint") == fingerprint
    return report if same and output.exists() else None


def embed_file(source: Path, output: Path, settings: Settings) -> dict[str, Any]:
    """Mark one file: write the marked file, read it again to see that the mark is there, write its report.

    A file that is there already with a report of the same key, payload, source and settings is left alone.

    Raises:
        InputError: the image cannot be read or marked, or the written file doesn't hold the mark.
    """
    assert settings.payload is not None
    fingerprint = settings.fingerprint(source)
    if (finished := _is_finished(output, fingerprint)) is not None:
        _write_manifest(output, settings)
        return finished | {"skipped": True}
    watermarker = settings.watermarker()
    picture = read_image(source, settings.cropped_area)
    result = watermarker.embed(picture.pixels, settings.payload, valid_mask=picture.shown, hdr=picture.hdr)
    with replacing(output) as temporary:
        write_image(temporary, replace(picture, pixels=result.image), quality=settings.quality)
        with warnings.catch_warnings():
            # What there is to say about it was said when the source was read.
            warnings.simplefilter("ignore", UserWarning)
            again = read_image(temporary, settings.cropped_area)
        seen = watermarker.detect(
            again.pixels, payload=settings.payload, valid_mask=again.shown, hdr=again.hdr
        )
        if not seen.found or seen.payload != settings.payload:
            raise InputError(
                f"{source}: the mark didn't survive the writing of the file: raise --quality or lower --psnr"
            )
    report: dict[str, Any] = {
        "source": str(source),
        "output": str(output),
        "payload": settings.payload.hex(),
        "band": result.band,
        "psnr": finite(result.psnr),
        "ws_psnr": finite(result.ws_psnr),
        "ssim": result.ssim,
        "min_margin": result.min_margin,
        "dropped_bits": result.dropped,
        "iterations": result.iterations,
        "verified_p_value": seen.p_value,
        "verified_bit_errors": seen.bit_errors_corrected,
        "fingerprint": fingerprint,
    }
    _write_manifest(output, settings)
    write_json(report_path(output), report)
    return report


def _write_manifest(output: Path, settings: Settings) -> None:
    if settings.c2pa and settings.payload is not None:
        write_json(output.with_name(output.name + ".c2pa.json"), c2pa_manifest(settings.payload))


def c2pa_manifest(payload: bytes) -> dict[str, Any]:
    """A manifest definition with a soft-binding assertion, for a C2PA tool to sign."""
    data = {"alg": C2PA_ALGORITHM, "blocks": [{"scope": {}, "value": payload.hex()}]}
    return {
        "claim_generator_info": [{"name": "assay panorama-watermark", "version": "1"}],
        "assertions": [{"label": "c2pa.soft-binding", "data": data}],
    }


def detect_file(source: Path, output: Path | None, settings: Settings) -> dict[str, Any]:
    """Look for the mark in one file.

    Raises:
        InputError: the image cannot be read.
    """
    picture = read_image(source, settings.cropped_area)
    seen = settings.watermarker().detect(
        picture.pixels, payload=settings.payload, valid_mask=picture.shown, hdr=picture.hdr
    )
    text = None
    if seen.payload is not None:
        decoded = seen.payload.decode("utf-8", errors="replace")
        text = decoded if decoded.isprintable() else None
    return {
        "source": str(source),
        "found": seen.found,
        "payload": seen.payload.hex() if seen.payload is not None else None,
        "text": text,
        "p_value": seen.p_value,
        "false_positive_rate": seen.fpr,
        "bit_errors_corrected": seen.bit_errors_corrected,
        "band": seen.band,
        "p_value_by_band": dict(seen.bands),
        "quality": dict(seen.quality),
        "key_id": settings.key.id,
    }


def attempt(
    work: Callable[..., dict[str, Any]], source: Path, output: Path | None, settings: object
) -> Outcome:
    """The outcome of `work(source, output, settings)`, which returns a report; its warnings are collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            report, error = work(source, output, settings), None
        except InputError as problem:
            message = str(problem)
            report, error = {}, message if str(source) in message else f"{source}: {message}"
        except OSError as problem:
            report, error = {}, f"{source}: {problem.filename or 'file'}: {problem.strerror or problem}"
    notes = tuple(str(note.message) for note in caught if issubclass(note.category, UserWarning))
    return Outcome(source, report, error, notes)


def _start_worker() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_batch(
    work: Callable[..., dict[str, Any]],
    files: Sequence[tuple[Path, Path | None]],
    settings: Settings,
    jobs: int,
) -> Iterator[Outcome]:
    """Do the work on every (source, output), in `jobs` processes; outcomes come as they finish.

    Raises:
        InputError: `jobs` isn't positive.
    """
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}")
    if jobs == 1 or len(files) == 1:
        for source, output in files:
            yield attempt(work, source, output, settings)
        return
    # Libraries read this when a worker starts: one thread each, so that processes don't fight for cores.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        pool = ProcessPoolExecutor(
            min(jobs, len(files)), mp_context=get_context("spawn"), initializer=_start_worker
        )
        try:
            futures = [pool.submit(attempt, work, source, output, settings) for source, output in files]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def payload_of(text: str, hexadecimal: bool) -> bytes:
    """The payload that was typed: text, or hexadecimal digits.

    Raises:
        InputError: the digits aren't hexadecimal, or there is nothing.
    """
    if not text:
        raise InputError("the payload is empty")
    if not hexadecimal:
        return as_payload(text)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InputError(f"--hex wants an even number of hexadecimal digits, got {text!r}") from None
