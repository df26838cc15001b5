"""What the verbs share: their parameters, printing, and the scorer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.jepa_guidance.images import ImageFolder
    from assay.methods.jepa_guidance.scorer import JEPAScorer

Flag = Annotated[bool, Parameter(negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]
Images = Annotated[Path, Parameter(name="IMAGES")]
Device = Literal["auto", "cpu", "cuda"]


def printer(quiet: bool) -> Console:
    """What the verbs print with; nothing when quiet, or in the other processes of `accelerate launch`."""
    from rich.console import Console

    other = os.environ.get("RANK", "0") != "0"
    return Console(quiet=quiet or other, highlight=False, soft_wrap=True)


def load_scorer(encoder: str, device: str) -> JEPAScorer:
    """The scorer of an encoder folder or hub id, without transformers' own bars and notices."""
    from assay.methods.jepa_guidance.progress_bars import without_library_bars
    from assay.methods.jepa_guidance.scorer import JEPAScorer

    with without_library_bars():
        return JEPAScorer.from_pretrained(encoder, device=device)


def report_unreadable(folder: ImageFolder, console: Any) -> None:
    """List the files that could not be read."""
    for name, reason in folder.unreadable:
        console.print(f"skipped {name}: {reason}", markup=False)
