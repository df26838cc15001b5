"""The verbs `calibrate` and `score`: what an encoder's score means on one's images, and the score of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import InputError
from assay.methods.jepa_guidance.commands.parts import (
    Device,
    Flag,
    Images,
    Out,
    load_scorer,
    printer,
    report_unreadable,
)
from assay.methods.jepa_guidance.progress_bars import progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from assay.methods.jepa_guidance.calibration import Calibration
    from assay.methods.jepa_guidance.images import ImageFolder
    from assay.methods.jepa_guidance.scorer import JEPAScorer

_BATCH = 32
_SHEET_IMAGES = 100


def calibrate(
    images: Images,
    *,
    encoder: str,
    rare: Path | None = None,
    rare_class: list[str] | None = None,
    neighbours: int = 5,
    out: Path | None = None,
    device: Device = "auto",
    seed: int = 0,
    quiet: Flag = False,
) -> None:
    """Measure whether a low JEPA-SCORE means rare on your images, and keep the answer with the encoder.

    The rank correlation of the negative score with the distance to the nearest neighbours among the images,
    in the principal components of their pixels. `sample` and `augment` read the sign, and refuse to guide
    where the interval holds 0.

    Parameters
    ----------
    images
        A folder of images like those that you want to sample or to score.
    encoder
        A folder that `train-encoder` made, or any encoder of transformers (a folder or a hub id).
    rare
        A folder of further images that you know to be rare: how well the score finds them is measured too.
    rare_class
        A sub-folder of IMAGES that is rare; may be repeated.
    neighbours
        How many nearest neighbours.
    out
        Where jepa_calibration.json goes; by default into the encoder's folder.
    device
        auto takes a GPU if there is one.
    seed
        Of the bootstrap.
    quiet
        Print nothing.
    """
    console = printer(quiet)
    target = out or Path(encoder)
    if not target.is_dir():
        raise InputError(f"{target} is no folder: name one with --out for the calibration")
    scorer = load_scorer(encoder, device)
    folder = _read(images, scorer, console)
    reference, labels = _with_rare(folder, rare, rare_class, scorer, console)
    with progress_bar("Scoring", len(reference), quiet=quiet) as advance:
        calibration = scorer.calibrate(reference, labels, k=neighbours, seed=seed, on_progress=advance)
    path = calibration.save(target)
    for line in describe(calibration):
        console.print(line)
    console.print(f"written to {path}", markup=False)


def _read(images: Path, scorer: JEPAScorer, console: Any) -> ImageFolder:
    from assay.methods.jepa_guidance.images import read_images

    folder = read_images(images, scorer.image_size, scorer.channels)
    report_unreadable(folder, console)
    return folder


def _with_rare(
    folder: ImageFolder, rare: Path | None, classes: list[str] | None, scorer: JEPAScorer, console: Any
) -> tuple[Tensor, Tensor | None]:
    """The reference images, and which of them are rare if the user has said so."""
    import torch

    labels = torch.zeros(len(folder.names), dtype=torch.bool)
    if classes:
        from assay.methods.jepa_guidance.images import read_classes

        numbers, names = read_classes(folder)
        if unknown := sorted(set(classes) - set(names)):
            raise InputError(f"{folder.root} has no class {unknown[0]!r}; its classes are {', '.join(names)}")
        labels |= torch.isin(numbers, torch.tensor([names.index(name) for name in classes]))
    reference = folder.images
    if rare is not None:
        further = _read(rare, scorer, console)
        reference = torch.cat([reference, further.images])
        labels = torch.cat([labels, torch.ones(len(further.names), dtype=torch.bool)])
    return reference, labels if classes or rare is not None else None


def describe(calibration: Calibration) -> list[str]:
    """What a calibration says, in words."""
    meaning = {
        1: "a low score means rare (the paper's direction)",
        -1: "a high score means rare: the reverse of the paper's direction",
        0: "the score does not rank density on these images: guidance will refuse this encoder",
    }[calibration.sign]
    lines = [
        f"{calibration.images} images: correlation of the negative score with the distance to "
        f"{calibration.neighbours} neighbours {calibration.rho:+.2f} "
        f"(95% interval {calibration.rho_low:+.2f} to {calibration.rho_high:+.2f})"
    ]
    if calibration.auroc is not None:
        lines.append(
            f"area under the ROC curve of the negative score for the rare images {calibration.auroc:.2f} "
            f"(95% interval {calibration.auroc_low:.2f} to {calibration.auroc_high:.2f})"
        )
    return [*lines, meaning]


def score(
    images: Images,
    *,
    encoder: str,
    out: Out = Path("scores.csv"),
    method: Literal["exact", "rsvd"] = "exact",
    k: int = 9,
    sheet: Path | None = None,
    device: Device = "auto",
    quiet: Flag = False,
) -> int:
    """Score every image of a folder by JEPA-SCORE. Exit code 1 when a file could not be read.

    Parameters
    ----------
    images
        The folder.
    encoder
        A folder that `train-encoder` made, or any encoder of transformers (a folder or a hub id).
    out
        The table: filename, jepa_score, error.
    method
        exact takes all singular values of the encoder's Jacobian; rsvd the k largest, by random projections
        (faster for large encoders, and not comparable with exact).
    k
        How many singular values rsvd takes.
    sheet
        A PNG of images in the order of their scores, lowest first; of more than a hundred, at even ranks.
    device
        auto takes a GPU if there is one.
    quiet
        Print nothing.
    """
    from assay.files import replacing
    from assay.methods.jepa_guidance.images import list_images

    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    console = printer(quiet)
    names = list_images(images)
    scorer = load_scorer(encoder, device)
    scores, errors = _score_files(images, names, scorer, method, k, quiet)
    with replacing(out) as temporary:
        _write_table(temporary, names, scores, errors)
    console.print(f"{len(scores)} of {len(names)} images scored: {out}", markup=False)
    for name, reason in errors.items():
        console.print(f"{name}: {reason}", markup=False)
    if sheet is not None and scores:
        _write_sheet(sheet, images, scores, scorer)
        console.print(f"lowest scores first: {sheet}", markup=False)
    return 1 if errors else 0


def _score_files(
    root: Path, names: list[str], scorer: JEPAScorer, method: Any, k: int, quiet: bool
) -> tuple[dict[str, float], dict[str, str]]:
    """Scores and errors by name."""
    import numpy as np
    import torch

    from assay.methods.jepa_guidance.images import read_image

    scores: dict[str, float] = {}
    errors: dict[str, str] = {}
    with progress_bar("Scoring", len(names), quiet=quiet) as advance:
        for start in range(0, len(names), _BATCH):
            batch = names[start : start + _BATCH]
            read = {}
            for name in batch:
                try:
                    read[name] = read_image(root / name, size=scorer.image_size, channels=scorer.channels)
                except InputError as error:
                    errors[name] = str(error)
            if read:
                pixels = torch.from_numpy(np.stack(list(read.values()))).float() / 255
                values = scorer.score(pixels, method=method, k=k).tolist()
                scores |= dict(zip(read, values, strict=True))
            advance(len(batch))
    return scores, errors


def _write_sheet(sheet: Path, root: Path, scores: dict[str, float], scorer: JEPAScorer) -> None:
    """The images in the order of their scores; of more than a hundred, at even steps of rank."""
    import numpy as np

    from assay.methods.jepa_guidance.images import contact_sheet, read_image, write_png

    ordered = sorted(scores, key=lambda name: scores[name])
    ranks = np.linspace(0, len(ordered) - 1, min(len(ordered), _SHEET_IMAGES)).round().astype(int)
    shown = [
        read_image(root / ordered[rank], size=scorer.image_size, channels=scorer.channels) for rank in ranks
    ]
    write_png(sheet, contact_sheet(np.stack(shown)))


def _write_table(path: Path, names: list[str], scores: dict[str, float], errors: dict[str, str]) -> None:
    import csv

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", "jepa_score", "error"])
        for name in names:
            value = f"{scores[name]:.6f}" if name in scores else ""
            writer.writerow([name, value, errors.get(name, "")])
