"""The study of crh: what is true of the cylinder on a real model, concept by concept.

All concepts have the same questions. A seed is a fold: a third of the questions is held out, axis and plane
come from the others, and no sentence is in both. Margins are nats a token (`ConceptMargin`); strengths are in
mean differences of the concept.

- `axis`: directions of several methods, pushed equally far; what the margin gains on held-out questions.
- `penalty`: a sample's own direction with its normal part shrunk by p; where the margin first reaches zero.
- `map`: equal pushes along the axis, turned around it: in the plane of the sample's own normal (an oracle: it
  needs the response with the concept), in the fitted plane, in random planes.
- `answers`: what the model then writes, judged by lexicons.
- `plane`: the share of held-out gradients (taken at 0.7 mean differences along the axis) and of held-out
  normals inside the fitted plane, beside chance and the planes of other concepts.
- `sector`: held-out sectors predicted from difference vectors, and planted ones as a positive control.
- `samples`: onsets along the axis: whether similar differences have similar onsets, and whether the interval
  of the strength recommendation covers.
- `law`: the trigonometric law with a null that repeats its search.
- `cells`: the order own sector > axis > opposite sector at other layers, reading positions and axes.
- `helix`: the path of optimised vectors of one prompt, against random walks and shuffled lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.methods.crh.study_claims import CLAIMS, RANK
from assay.study import FinishedTrial, Panel, Scale, Study, Trial

WRITTEN = ("dogs", "ocean", "music", "money", "cooking", "weather", "sport", "gardens")
DIRECTIONS = ("diffmean", "pca", "probe", "random", "other-concept", "own-direction")
PLANES = ("own-normal", "fitted", "random")
STEERED = ("axis", "own-sector", "opposite-sector", "random")
PREDICTORS = ("constant", "nearest", "ridge")
FRAMES = ("own", "shared", "planted")
PENALTIES = (0.0, 0.25, 0.5, 0.75, 1.0)
# One thing is changed at a time; the first is what all other parts use.
CELLS = ("base", "layer", "last-token", "pca", "probe", "all-tokens")


@dataclass(frozen=True)
class Design:
    """How much is measured of a model.

    Args:
        layers: the paper's two layers for it, counted from 0; the first is the main one.
        concepts: ids.
        generated: whether the model writes the pairs itself; else they are the hand-written ones.
        questions: how many of the hand-written questions are used.
        folds: parts of the questions; one is held out.
        tested: held-out questions of a concept in the costly parts.
        mapped: those of them whose sectors are mapped.
        onset_steps: strengths up to `onset_max` at which margins are measured.
        tokens: of an answer.
        helix_lengths, helix_steps: vectors on the path, and steps of Adam for each.
    """

    layers: tuple[int, int]
    concepts: tuple[str, ...] = WRITTEN
    generated: bool = False
    questions: int = 24
    folds: int = 3
    tested: int = 4
    mapped: int = 2
    sectors: int = 8
    map_strengths: tuple[float, ...] = (0.6, 1.2, 1.8, 2.4)
    random_planes: int = 2
    axis_strengths: tuple[float, ...] = (1.0, 2.0, 3.0)
    pushes: tuple[float, ...] = (2.0, 3.0)
    onset_steps: int = 10
    onset_max: float = 5.0
    ranks: tuple[int, ...] = (2, 4, RANK, 15)
    tokens: int = 20
    permutations: int = 999
    helix_lengths: int = 16
    helix_steps: int = 20


def _full(layers: tuple[int, int]) -> Design:
    return Design(
        layers,
        generated=True,
        tested=25,
        mapped=25,
        sectors=24,
        random_planes=8,
        onset_steps=25,
        ranks=(2, 4, RANK, 16, 32),
        tokens=32,
        helix_lengths=30,
    )


DESIGNS: Mapping[str, Design] = {
    "tiny-random": Design(
        (2, 3), WRITTEN[:2], questions=15, tested=2, mapped=1, sectors=4, map_strengths=(1.0, 2.0),
        axis_strengths=(1.0,), pushes=(2.0,), onset_steps=3, ranks=(2, RANK), tokens=3, permutations=19,
        helix_lengths=8, helix_steps=1,
    ),
    "embedded": Design((15, 22)),
    "google/gemma-2-2b-it": _full((9, 13)),
    "meta-llama/Llama-2-7b-chat-hf": _full((16, 24)),
    "Qwen/Qwen2.5-14B-Instruct": _full((24, 36)),
}  # fmt: skip
MODELS: Mapping[Scale, tuple[str, ...]] = {
    "smoke": ("tiny-random",),
    "quick": ("embedded",),
    "full": ("google/gemma-2-2b-it", "meta-llama/Llama-2-7b-chat-hf", "Qwen/Qwen2.5-14B-Instruct"),
}


def trials(scale: Scale, seeds: int | None) -> Iterable[Trial]:
    """Every part for every concept. The cheap parts have all folds; the costly ones one, or `seeds`."""
    for model in MODELS[scale]:
        design = DESIGNS[model]
        folds = range(seeds or design.folds)
        first = range(seeds or 1)
        yield Trial("helix", {"part": "helix", "model": model}, 0)
        # Concepts vary faster than arms, so that two workers do not wait for the same cached work.
        yield from _each(model, ("axis",), {"part": "samples"}, folds)
        for strength in design.axis_strengths:
            setting = {"part": "axis", "strength": strength}
            yield from _each(model, (*DIRECTIONS, "angular", "instruction"), setting, first)
        for penalty in PENALTIES:
            yield from _each(model, ("own-direction",), {"part": "penalty", "penalty": penalty}, first)
        yield from _each(model, PLANES, {"part": "map"}, first)
        for push in design.pushes:
            arms = (*STEERED, "angular", "instruction", "none")
            yield from _each(model, arms, {"part": "answers", "push": push}, first)
        for rank in design.ranks:
            yield from _each(model, ("own", "others"), {"part": "plane", "rank": rank}, folds)
        for frame in FRAMES:
            yield from _each(model, PREDICTORS, {"part": "sector", "frame": frame}, folds)
        for cell in CELLS:
            yield from _each(model, ("cylinder",), {"part": "cells", "cell": cell}, first)
        if len(design.concepts) >= 4:
            yield Trial("law", {"part": "law", "model": model}, 0)


def _each(
    model: str, arms: Sequence[str], setting: Mapping[str, str | float], seeds: Iterable[int]
) -> Iterable[Trial]:
    for seed in seeds:
        for arm in arms:
            for concept in DESIGNS[model].concepts:
                yield Trial(arm, {**setting, "model": model, "concept": concept}, seed)


def run(trial: Trial) -> dict[str, float]:
    """Measure one arm on one concept; passes through the model are shared by arms and cached."""
    from assay.methods.crh import experiments

    return experiments.PARTS[str(trial.setting["part"])](trial)


def figures(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """The cylinder, sector maps, onset against penalty, captured energy, predicted sectors, axes, answers."""
    from assay.methods.crh.study_figures import panels

    return panels(finished)


STUDY = Study(
    method="crh",
    question="Is steering a cylinder: an axis that turns a concept on, and around it sectors that help or "
    "hinder, in a plane that can be inferred but at angles that cannot?",
    claims=CLAIMS,
    trials=trials,
    run=run,
    figures=figures,
)
