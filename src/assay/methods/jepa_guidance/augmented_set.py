"""Rare but valid images for a data set: which candidates are kept, and the folder that results."""

from __future__ import annotations

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from assay.errors import InputError
from assay.files import replacing_folder
from assay.methods.jepa_guidance.images import (
    ImageFolder,
    contact_sheet,
    read_captions,
    read_classes,
    write_png,
)
from assay.methods.jepa_guidance.metrics import rarity_score
from assay.methods.jepa_guidance.sampling_job import read_sample

_COMPONENTS = 20
_NEIGHBOURS = 3
_SHEET_IMAGES = 100


@dataclass(frozen=True)
class ConditionPlan:
    """What the candidates are conditioned on.

    Args:
        prompts: captions, one a candidate in turn.
        classes: numbers of classes, one a candidate in turn.
        class_names: what the numbers mean.
        captions: of the originals, in the order of their names.
        labels: the classes of the originals, in the order of their names.
    """

    prompts: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The candidates that are kept.

    Args:
        rows: their rows of the manifest, the rarest first, with `rarity` added.
        valid: how many candidates lie within the data.
    """

    rows: list[dict[str, Any]]
    valid: int


def added_count(originals: int, rare_fraction: float) -> int:
    """How many images must be added so that they are a part `rare_fraction` of all.

    Args:
        originals: images of the data set.
        rare_fraction: between 0 and 1.
    """
    return max(1, round(originals * rare_fraction / (1 - rare_fraction)))


def condition_plan(
    folder: ImageFolder, pipeline: Any, classes: Literal["proportional", "uniform"], seed: int
) -> ConditionPlan:
    """The classes or captions of the candidates: the data set's in a random order, or each class alike.

    Args:
        folder: the data set.
        pipeline: says what it is conditioned on.
        classes: "proportional" or "uniform".
        seed: of the order.

    Raises:
        InputError: the data set has no classes or captions where the generator needs them, or others.
    """
    config = pipeline.unet.config
    order = np.random.default_rng(seed).permutation(len(folder.names))
    if config.get("num_classes") is not None:
        numbers, names = read_classes(folder)
        known = [pipeline.class_index(name) for name in names]
        labels = tuple(names[number] for number in numbers.tolist())
        in_turn = known if classes == "uniform" else [known[int(numbers[i])] for i in order]
        called = tuple(pipeline.config["class_names"] or map(str, range(config["num_classes"])))
        return ConditionPlan(classes=tuple(in_turn), class_names=called, labels=labels)
    if config.get("text_dim") is not None:
        captions = read_captions(folder)
        return ConditionPlan(prompts=tuple(captions[i] for i in order), captions=tuple(captions))
    if classes == "uniform":
        raise InputError("the generator knows no classes: leave --classes out")
    return ConditionPlan()


def select_candidates(
    folder: ImageFolder, candidates: Path, rows: list[dict[str, Any]], wanted: int, sign: int
) -> Selection:
    """The rarest of the candidates that lie within the data.

    A candidate is valid when it lies in the ball around some original that reaches to that original's third
    nearest neighbour, in the first twenty principal components of the originals' pixels (the precision test
    of Kynkäänniemi et al. 2019). Rare is what the calibrated score says.

    Args:
        folder: the data set.
        candidates: the folder of the candidates.
        rows: their manifest, with `filename` and `jepa_score`.
        wanted: how many to keep.
        sign: +1 if a low score means rare, -1 if a high one does.
    """
    from sklearn.decomposition import PCA

    real = folder.pixels.flatten(1).numpy() / 255.0
    fake = np.stack([read_sample(candidates / row["filename"]).ravel() for row in rows]) / 255.0
    components = min(_COMPONENTS, *(side - 1 for side in real.shape))
    space = PCA(components, svd_solver="full").fit(real)
    rarity = rarity_score(space.transform(fake), space.transform(real), _NEIGHBOURS)
    valid = [
        row | {"rarity": float(value)} for row, value in zip(rows, rarity, strict=True) if value == value
    ]
    if not valid:
        raise InputError(
            f"none of {len(rows)} candidates lies within the data: use a smaller --eta-total, or train the "
            "generator for longer"
        )
    ranked = sorted(valid, key=lambda row: sign * row["jepa_score"])
    return Selection(ranked[:wanted], len(valid))


def write_augmented(folder: ImageFolder, out: Path, selection: Selection, plan: ConditionPlan) -> None:
    """Write `out/dataset`, whole or not at all: originals, new images, metadata; and `out/added.png`.

    Args:
        folder: the data set.
        out: where `candidates/` lies and `dataset/` goes.
        selection: what is added.
        plan: the classes and captions.
    """
    with replacing_folder(out / "dataset") as target:
        table: list[dict[str, Any]] = []
        for index, name in enumerate(folder.names):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder.root / name, target / name)
            row: dict[str, Any] = {"file_name": name, "generated": "no"}
            if plan.labels:
                row["label"] = plan.labels[index]
            if plan.captions:
                row["text"] = plan.captions[index]
            table.append(row)
        for chosen in selection.rows:
            label = plan.class_names[chosen["class"]] if "class" in chosen else ""
            # Classes are sub-folders only where those of the originals are.
            place = label if label and (target / label).is_dir() else ""
            name = "/".join(part for part in (place, f"rare-{chosen['filename']}") if part)
            shutil.copy2(out / "candidates" / chosen["filename"], target / name)
            row = {"file_name": name, "generated": "yes", "seed": chosen["seed"]}
            row |= {"jepa_score": f"{chosen['jepa_score']:.6f}", "rarity": f"{chosen['rarity']:.6f}"}
            if label:
                row["label"] = label
            if "prompt" in chosen:
                row["text"] = chosen["prompt"]
            table.append(row)
        columns = ["file_name", "generated", "label", "text", "seed", "jepa_score", "rarity"]
        used = [name for name in columns if any(name in row for row in table)]
        with (target / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, used, restval="")
            writer.writeheader()
            writer.writerows(table)
    shown = [read_sample(out / "candidates" / row["filename"]) for row in selection.rows[:_SHEET_IMAGES]]
    write_png(out / "added.png", contact_sheet(np.stack(shown)))
