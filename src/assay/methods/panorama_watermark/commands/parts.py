"""What the verbs share: their parameters, the key, and following a batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from assay.methods.panorama_watermark.batch import Outcome
    from assay.methods.panorama_watermark.gpano import Placement
    from assay.methods.panorama_watermark.keys import Key

Flag = Annotated[bool, Parameter(negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]
Sources = Annotated[list[Path], Parameter(name="IN")]
CodeName = Literal["bch127_64", "bch255_131", "bch255_71", "bch511_259"]


def key_of(key_file: Path | None, passphrase: bool) -> Key:
    """The key of a file, or of a passphrase that is asked for.

    Raises:
        InputError: neither or both are given, or the key cannot be used.
    """
    from assay.methods.panorama_watermark.keys import Key

    if (key_file is None) == (not passphrase):
        raise InputError("give the key: --key-file FILE or --passphrase (one of them)")
    if key_file is not None:
        return Key.read(key_file)
    import getpass
    import sys

    if sys.stdin.isatty():
        return Key.from_passphrase(getpass.getpass("Passphrase: "))
    return Key.from_passphrase(sys.stdin.readline().rstrip("\n"))


def placement_of(text: str | None) -> Placement | None:
    """What --cropped-area says.

    Raises:
        InputError: it isn't four whole numbers.
    """
    from assay.methods.panorama_watermark.gpano import Placement

    if text is None:
        return None
    try:
        left, top, width, height = (int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--cropped-area wants LEFT,TOP,FULL_WIDTH,FULL_HEIGHT, got {text!r}") from None
    return Placement(left, top, width, height)


def check_targets(files: Sequence[tuple[Path, Path]]) -> None:
    """Refuse (source, target) pairs that would overwrite a source, or one another's target.

    Raises:
        InputError: a target is a source, or stands twice.
    """
    sources = {source.resolve() for source, _ in files}
    seen: set[Path] = set()
    for source, target in files:
        if target.resolve() in sources:
            raise InputError(f"{source} would be overwritten: choose another --out")
        if target in seen:
            raise InputError(f"two inputs would both be written to {target}")
        seen.add(target)


def follow(outcomes: Iterator[Outcome], total: int, title: str, console: Console) -> list[Outcome]:
    """All outcomes in the order of their sources, with a progress bar; warnings go to standard error."""
    from rich.console import Console as Terminal
    from rich.progress import track

    hidden = console.quiet or not console.is_terminal
    shown = track(outcomes, title, total=total, console=console, transient=True, disable=hidden)
    done = sorted(shown, key=lambda outcome: str(outcome.source))
    warn = Terminal(stderr=True, quiet=console.quiet, highlight=False, style="yellow")
    for outcome in done:
        for note in outcome.warnings:
            text = note if str(outcome.source) in note else f"{outcome.source}: {note}"
            warn.print(text, soft_wrap=True, markup=False)
    return done


def print_json(outcome: Outcome, wanted: bool) -> None:
    """One JSON line on standard output: the report, or the error."""
    import json

    if wanted:
        line = (
            outcome.report
            if outcome.error is None
            else {"source": str(outcome.source), "error": outcome.error}
        )
        print(json.dumps(line, ensure_ascii=False, allow_nan=False))


def raise_failures(outcomes: list[Outcome]) -> None:
    """Raise an InputError that lists what failed, if anything did."""
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(failed) == 1 and len(outcomes) == 1:
        raise InputError(failed[0])
    if failed:
        raise InputError(f"{len(failed)} of {len(outcomes)} images failed: {'; '.join(failed)}")
