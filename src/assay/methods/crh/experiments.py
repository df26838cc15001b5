"""What the trials of the study measure of axes, normals and sectors; see `study` for what the parts are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from assay.methods.crh.baselines import angular_steer, baseline_directions, instructed, rotation_plane
from assay.methods.crh.cylinder import Axis, Cylinder
from assay.methods.crh.detectors import CONCEPT, CORRUPTED, label
from assay.methods.crh.directions import random_direction
from assay.methods.crh.extraction import Site
from assay.methods.crh.generation import replies
from assay.methods.crh.margin import ConceptMargin
from assay.methods.crh.pairs import ConceptPairs
from assay.methods.crh.sectors import SectorMap, sector_map
from assay.methods.crh.steering import Position, steer
from assay.methods.crh.study import DIRECTIONS, PENALTIES, STEERED
from assay.methods.crh.study_material import READ, Bench, Measured, concept_of, model_of, onset
from assay.methods.crh.study_predictability import helix, law, plane, samples, sector
from assay.study import Trial

TILT = 60.0
# Answers are generated nearer to the axis: at 60 degrees they are no longer language.
ANSWER_TILT = 30.0
# What differs from the main cell: layer (an index into the design's two), reading position, axis, tokens.
CELLS: dict[str, tuple[int, Site, Axis, Position]] = {
    "base": (0, READ, "diffmean", "output"),
    "layer": (1, READ, "diffmean", "output"),
    "last-token": (0, "last", "diffmean", "output"),
    "pca": (0, READ, "pca", "output"),
    "probe": (0, READ, "probe", "output"),
    "all-tokens": (0, READ, "diffmean", "all"),
}


def _angle(strength: float) -> float:
    """Angular steering has an angle and no strength: 1, 2 and 3 stand for 60, 30 and 0 degrees."""
    return 90.0 - 30.0 * strength


# ------------------------------------------------------------------------------------------ axes and normals


def axis(trial: Trial) -> Measured:
    """What pushing along a direction adds to the margin of held-out samples."""
    bench = Bench.of(trial)
    found = bench.kept("axis", lambda: _axis_margins(bench))
    column = bench.design.axis_strengths.index(float(trial.setting["strength"]))
    values = found[trial.arm] if trial.arm == "instruction" else found[trial.arm][column]
    return {
        "gain": float((values - found["none"]).mean()),
        "margin": float(values.mean()),
        "preferred": float((values >= 0).mean()),
    }


def _axis_margins(bench: Bench) -> dict[str, np.ndarray]:
    """Margins [strengths, samples] by direction."""
    design, cylinder, margin, tested = bench.design, bench.cylinder(), bench.margin(), bench.tested()
    train, _ = bench.split()
    other = replace(bench, concept=bench.others[0]).cylinder()
    shared = baseline_directions(bench.activations().subset(train), bench.layer, other=other, seed=bench.seed)
    named = [shared[name.replace("-", " ")] for name in DIRECTIONS if name != "own-direction"]
    scale = torch.tensor(design.axis_strengths, dtype=torch.float64) * cylinder.axis_norm
    additive, none = [], []
    for i in tested:
        own = bench.differences()[i]
        directions = torch.stack([*named, own / own.norm()])
        rows = (directions.unsqueeze(1) * scale.view(1, -1, 1)).flatten(0, 1)
        values = margin(i, torch.cat([torch.zeros_like(rows[:1]), rows])).numpy()
        none.append(values[0])
        additive.append(values[1:].reshape(len(directions), len(scale)))
    stacked = np.stack(additive, axis=-1)
    found = {name: stacked[row] for row, name in enumerate(DIRECTIONS)}
    found["none"] = np.array(none)
    found["angular"] = _angular_margins(bench, tested)
    about = concept_of(bench.source, bench.concept)
    asking = ConceptPairs(
        tuple(
            replace(bench.pairs[i], question=instructed(bench.pairs[i].question, about.instruction))
            for i in tested
        )
    )
    model, tokenizer = model_of(bench.source)
    instructing = ConceptMargin(model, tokenizer, asking, bench.layer)
    nothing = torch.zeros(cylinder.width)
    found["instruction"] = np.array([float(instructing(k, nothing)) for k in range(len(asking))])
    return found


def _angular_margins(bench: Bench, tested: list[int]) -> np.ndarray:
    train, _ = bench.split()
    plane = rotation_plane(bench.differences()[train])
    margin = bench.margin(path="full")
    nothing = torch.zeros(len(plane[0]))
    rows = []
    for strength in bench.design.axis_strengths:
        with angular_steer(margin.model, plane, _angle(strength), bench.layer):
            rows.append([float(margin(i, nothing)) for i in tested])
    return np.array(rows)


def penalty(trial: Trial) -> Measured:
    """The onset along a sample's own direction with its normal part shrunk."""
    bench = Bench.of(trial)
    found = bench.kept("penalty", lambda: _penalty_onsets(bench))
    row = PENALTIES.index(float(trial.setting["penalty"]))
    return {"onset": float(found["onsets"][row].mean()), "never": float(found["never"][row].mean())}


def _penalty_onsets(bench: Bench) -> dict[str, np.ndarray]:
    cylinder, margin = bench.cylinder(), bench.margin()
    shape = (len(PENALTIES), len(bench.tested()))
    onsets, never = np.zeros(shape), np.zeros(shape, dtype=bool)
    for column, i in enumerate(bench.tested()):
        for row, shrunk in enumerate(PENALTIES):
            direction = cylinder.penalised(bench.differences()[i], 1.0, shrunk)
            onsets[row, column], never[row, column] = onset(
                margin, i, direction, cylinder.axis_norm, bench.design
            )
    return {"onsets": onsets, "never": never}


# -------------------------------------------------------------------------------------------------- sectors


def map_(trial: Trial) -> Measured:
    """How the margin changes around the axis at equal push along it, in one kind of plane."""
    bench = Bench.of(trial)
    found = bench.kept("map", lambda: _maps(bench))
    # [samples, planes, sectors, strengths]
    margins = found[trial.arm]
    effects = [
        SectorMap(
            found["angles"], found["strengths"], one, axial, np.zeros((0, *one.shape)), math.radians(TILT),
            trial.arm == "own-normal",
        ).effects()
        for planes, axial in zip(margins, found["axis_only"], strict=True)
        for one in planes
    ]  # fmt: skip
    measured = {
        "range": float(np.mean([effect.range for effect in effects])),
        "amplitude": float(np.mean([effect.amplitude for effect in effects])),
        "facilitating": float(np.mean([effect.facilitating for effect in effects])),
        "suppressing": float(np.mean([effect.suppressing for effect in effects])),
        "smaller_share": float(np.mean([min(one.facilitating, one.suppressing) for one in effects])),
        "towards_first": float(np.mean([math.cos(effect.phase) for effect in effects])),
    }
    gain = (margins - found["axis_only"][:, None, None, :]).mean(axis=(0, 1))
    for phi, row in enumerate(gain):
        for s, value in enumerate(row):
            measured[f"gain:{phi}:{s}"] = float(value)
    return measured


def _maps(bench: Bench) -> dict[str, np.ndarray]:
    design, cylinder, margin = bench.design, bench.cylinder(), bench.margin()
    strengths = [factor * cylinder.axis_norm for factor in design.map_strengths]
    own, fitted, controls, axial = [], [], [], []
    for i in bench.tested()[: design.mapped]:
        around = sector_map(
            margin, cylinder, i, n_phi=design.sectors, strengths=strengths, tilt_deg=TILT,
            difference=bench.differences()[i], n_controls=design.random_planes, seed=bench.seed + 7 * i,
        )  # fmt: skip
        plain = sector_map(
            margin, cylinder, i, n_phi=design.sectors, strengths=strengths, tilt_deg=TILT, n_controls=0
        )
        own.append(around.margins[None])
        fitted.append(plain.margins[None])
        controls.append(around.controls)
        axial.append(around.axis_only)
    angles = np.arange(design.sectors) * (2 * math.pi / design.sectors)
    return {
        "own-normal": np.stack(own),
        "fitted": np.stack(fitted),
        "random": np.stack(controls),
        "axis_only": np.stack(axial),
        "angles": angles,
        "strengths": np.array(design.map_strengths),
    }


def answers(trial: Trial) -> Measured:
    """The shares of answers that show the concept and that are no longer language."""
    bench = Bench.of(trial)
    found = bench.kept("answers", lambda: _labels(bench))
    row = bench.design.pushes.index(float(trial.setting["push"]))
    labels = found[trial.arm] if trial.arm in ("instruction", "none") else found[trial.arm][row]
    return {"shown": float((labels == CONCEPT).mean()), "corrupted": float((labels == CORRUPTED).mean())}


def _labels(bench: Bench) -> dict[str, np.ndarray]:
    """Labels [pushes, samples] of greedy answers to held-out questions, by arm; and the texts."""
    design, cylinder, tested = bench.design, bench.cylinder(), bench.tested()
    about = concept_of(bench.source, bench.concept)
    questions = [bench.pairs[i].question for i in tested]
    model, tokenizer = model_of(bench.source)

    def answered(asked: list[str]) -> list[str]:
        return replies(model, tokenizer, asked, max_new_tokens=design.tokens, batch_size=len(asked))

    texts: dict[str, list[str]] = {}
    vectors = torch.cat([_answer_vectors(cylinder, bench, arm) for arm in STEERED])
    copies = len(STEERED) * len(design.pushes)
    with steer(model, vectors, bench.layer, position="all"):
        written = answered(questions * copies)
    size = len(written) // len(STEERED)
    for row, arm in enumerate(STEERED):
        texts[arm] = written[row * size : (row + 1) * size]
    train, _ = bench.split()
    plane = rotation_plane(bench.differences()[train])
    texts["angular"] = []
    for push in design.pushes:
        with angular_steer(model, plane, _angle(push), bench.layer):
            texts["angular"] += answered(questions)
    texts["none"] = answered(questions)
    texts["instruction"] = answered([instructed(question, about.instruction) for question in questions])
    found: dict[str, np.ndarray] = {}
    for arm, given in texts.items():
        labels = np.array([label(text, about.detector) for text in given])
        found[arm] = labels if arm in ("none", "instruction") else labels.reshape(len(design.pushes), -1)
        found[f"texts:{arm}"] = np.array(given)
    return found


def _answer_vectors(cylinder: Cylinder, bench: Bench, arm: str) -> Tensor:
    """Vectors for every push and held-out question, questions varying fastest; axial parts are equal."""
    rows = []
    for push in bench.design.pushes:
        for i in bench.tested():
            if arm == "random":
                direction = random_direction(cylinder.width, bench.seed)
            elif arm == "axis":
                direction = cylinder.axis
            else:
                sign = 1.0 if arm == "own-sector" else -1.0
                normal = cylinder.frame(bench.differences()[i])[0]
                direction = cylinder.axis + sign * math.tan(math.radians(ANSWER_TILT)) * normal
            rows.append(push * cylinder.axis_norm * direction)
    return torch.stack(rows)


def cells(trial: Trial) -> Measured:
    """Whether a sample's own sector is above the axial push alone, and the opposite one below."""
    bench, name = Bench.of(trial), str(trial.setting["cell"])
    found = bench.kept(f"cell-{name}", lambda: _cell(bench, name))
    own, axial, opposite = found["margins"]
    return {
        "own_gain": float(own - axial),
        "opposite_gain": float(opposite - axial),
        "agrees": float(own > axial > opposite),
    }


def _cell(bench: Bench, name: str) -> dict[str, np.ndarray]:
    """Mean margins in the own sector, of the axial push alone and in the opposite sector."""
    index, read, kind, position = CELLS[name]
    layer = bench.design.layers[index]
    cylinder, margin = bench.cylinder(layer, read, kind), bench.margin(layer, position)
    scale = torch.tensor(bench.design.map_strengths, dtype=torch.float64) * cylinder.axis_norm
    tilt = math.radians(TILT)
    found = []
    for i in bench.tested()[: bench.design.mapped]:
        frame = cylinder.frame(bench.differences(layer, read)[i])
        around = cylinder.sector_directions(frame, tilt, torch.tensor([0.0, math.pi]))
        directions = torch.stack([around[0], math.cos(tilt) * cylinder.axis, around[1]])
        rows = (directions.unsqueeze(1) * scale.view(1, -1, 1)).flatten(0, 1)
        found.append(margin(i, rows).numpy().reshape(3, len(scale)).mean(axis=1))
    return {"margins": np.mean(found, axis=0)}


PARTS: dict[str, Callable[[Trial], Measured]] = {
    "axis": axis,
    "penalty": penalty,
    "map": map_,
    "answers": answers,
    "cells": cells,
    "plane": plane,
    "sector": sector,
    "samples": samples,
    "law": law,
    "helix": helix,
}
