"""What the trials of the study measure of what can be predicted: planes, sectors, onsets, law and helix."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from assay.methods.crh.helix import Swap, SwapLoss, fit_helix, steering_path
from assay.methods.crh.plane import captured_energy, plane_test
from assay.methods.crh.sector_prediction import SectorData, predict_sectors, sector_test
from assay.methods.crh.strength import Strengths, recommend
from assay.methods.crh.study import DESIGNS
from assay.methods.crh.study_material import Arrays, Bench, Measured, kept, model_of, sensitivities
from assay.methods.crh.trigonometric import fit_trigonometric_law
from assay.methods.crh.verdict import sector_data
from assay.study import Trial

COVERAGE = 0.8
PLANTED_NOISE = math.radians(30)
SWAP = Swap('The capital of France is called "', 'The capital of Italy is called "', "Paris", "Rome")
PLAIN = "{question}{response}"


def plane(trial: Trial) -> Measured:
    """The share of held-out gradients and normals in a plane, in multiples of chance."""
    bench, rank = Bench.of(trial), int(trial.setting["rank"])
    cylinder, (_, held_out) = bench.cylinder(), bench.split()
    gradients = sensitivities(bench).normals(cylinder.axis)[held_out]
    normals = cylinder.geometry(bench.differences()[held_out]).normal
    chance = rank / (cylinder.width - 1)
    names = [bench.concept] if trial.arm == "own" else bench.others
    bases = [replace(bench, concept=name).cylinder().basis[:rank] for name in names]
    measured = {
        "ratio": float(np.mean([captured_energy(gradients, basis).mean() for basis in bases])) / chance,
        "normal_ratio": float(np.mean([captured_energy(normals, basis).mean() for basis in bases])) / chance,
        "width": float(cylinder.width),
    }
    if trial.arm == "own":
        tested = plane_test(gradients, cylinder.basis, rank, seed=trial.seed)
        measured["p_value"] = tested.p_value
        measured |= {f"share:{k}": value for k, value in enumerate(tested.captured)}
    return measured


def sector(trial: Trial) -> Measured:
    """How well held-out sectors are predicted from difference vectors, within a concept."""
    bench, frame = Bench.of(trial), str(trial.setting["frame"])
    train, held_out = _phases(bench, frame, trial.arm)
    tested = sector_test(train, held_out, n_perm=bench.design.permutations, seed=trial.seed)
    score = tested.scores[trial.arm]
    measured = {"score": score.score, "p_value": score.p_value, "n": float(len(held_out))}
    predicted = predict_sectors(train, held_out)[trial.arm]
    for k, (true, guessed) in enumerate(zip(held_out.phases, predicted, strict=True)):
        measured |= {f"true:{k}": float(true), f"predicted:{k}": float(guessed)}
    return measured


def _phases(bench: Bench, frame: str, predictor: str) -> tuple[SectorData, SectorData]:
    """Training and held-out samples with their sectors, or with planted ones that `predictor` can find."""
    cylinder, (train, held_out) = bench.cylinder(), bench.split()
    data = sector_data(
        cylinder,
        bench.differences(),
        sensitivities(bench).normals(cylinder.axis),
        [bench.concept] * len(bench.pairs),
        shared=frame != "own",
    )
    if frame != "planted":
        return data.subset(train), data.subset(held_out)
    generator = np.random.default_rng(bench.seed)
    phases = generator.uniform(-np.pi, np.pi, len(data))
    if predictor == "constant":
        phases[:] = 1.0
    elif predictor == "nearest":
        similar = data.differences[held_out] @ data.differences[train].T
        phases[held_out] = phases[train][similar.argmax(axis=1)]
    else:
        spread = data.features[:, :2] - data.features[:, :2].mean(axis=0)
        spread = spread / spread.std(axis=0)
        phases = np.arctan2(spread[:, 1], spread[:, 0])
    planted = replace(data, phases=phases + PLANTED_NOISE * generator.standard_normal(len(data)))
    return planted.subset(train), planted.subset(held_out)


def samples(trial: Trial) -> Measured:
    """Onsets of held-out samples along the axis: what goes with them, and whether an interval covers."""
    bench = Bench.of(trial)
    train, held_out = bench.split()
    found, cylinder, differences = sensitivities(bench), bench.cylinder(), bench.differences()
    firing = np.where(found.never, np.inf, found.onsets)
    calibrated = Strengths(found.onsets[train], found.never[train], float(bench.design.onset_max))
    interval = recommend(calibrated, COVERAGE)
    measured = {
        "bounded": float(np.isfinite(interval.high)),
        "interval_width": min(interval.high, calibrated.s_max) - interval.low,
        "onset": float(found.onsets[held_out].mean()),
        "never": float(found.never[held_out].mean()),
        "mean_cosine": cylinder.mean_cosine,
        "gradient_axis_cosine": float(
            torch.nn.functional.cosine_similarity(found.gradients[held_out], cylinder.axis[None]).mean()
        ),
    }
    # Where no held-out sample fires there is nothing to cover.
    if (fires := firing[held_out][~found.never[held_out]]).size:
        measured["covered"] = float(((interval.low <= fires) & (fires <= interval.high)).mean())
    geometry = cylinder.geometry(differences[held_out])
    gradients = found.normals(cylinder.axis)[held_out]
    measured["gradient_normal_cosine"] = float((gradients * geometry.normal).sum(dim=1).mean())
    unit = torch.nn.functional.normalize(differences[held_out], dim=1)
    upper = np.triu_indices(len(held_out), 1)
    similarity = (unit @ unit.T).numpy()[upper]
    apart = np.abs(found.onsets[held_out][:, None] - found.onsets[held_out])[upper]
    # Without any difference between onsets there is no correlation to speak of.
    if apart.std() > 0:
        measured["correlation"] = float(np.corrcoef(similarity, apart)[0, 1])
    for k, i in enumerate(held_out):
        measured |= {
            f"z:{k}": float(geometry.length[k] * geometry.cosine[k]),
            f"r:{k}": float(geometry.length[k] * geometry.sine[k]),
            f"onset:{k}": float(firing[i]),
        }
    return measured


def law(trial: Trial) -> Measured:
    """The trigonometric law over all concepts, with its permutation test."""
    source = str(trial.setting["model"])
    design = DESIGNS[source]
    theta, concept, norms, steerability = [], [], [], []
    for number, name in enumerate(design.concepts):
        benches = [Bench(source, name, fold) for fold in range(design.folds)]
        steerability.append(float(1 - sensitivities(benches[0]).onsets.mean() / design.onset_max))
        norms.append(float(np.mean([bench.cylinder().axis_norm for bench in benches])))
        for bench in benches:
            cosine = bench.cylinder().geometry(bench.differences()[bench.split()[1]]).cosine
            theta += torch.arccos(cosine).tolist()
            concept += [number] * len(cosine)
    found = fit_trigonometric_law(
        np.array(theta),
        concept,
        np.array(norms),
        np.array(steerability),
        n_perm=design.permutations,
        seed=trial.seed,
    )
    return {
        "p_value": found.p_value,
        "naive_p": found.naive_p,
        "correlation": found.correlation,
        "relative_error": 1 - found.held_out_r2,
        "looks": float(found.looks),
        "concepts": float(found.concepts),
    }


def helix(trial: Trial) -> Measured:
    """The path of optimised vectors of one prompt, its nulls, and the losses of restored vectors."""
    source = str(trial.setting["model"])
    model, tokenizer = model_of(source)
    layer = DESIGNS[source].layers[0]
    path, losses = _path(source, layer).values()
    found = fit_helix(path, seed=trial.seed)
    loss = SwapLoss(model, tokenizer, SWAP, layer, template=PLAIN)
    mean = found.vectors.mean(axis=0)
    candidates = {
        "restored": found.restore,
        "principal": found.principal_reconstruction,
        # The intervention leaves the mean of the path out, here as in the paper's code; this puts it back.
        "principal_with_mean": lambda j: found.principal_reconstruction(j) + mean,
        "random": lambda j: found.random_vector(j, trial.seed + j),
    }
    with torch.no_grad():
        means = {
            name: float(np.mean([float(loss(torch.from_numpy(made(j)).float())) for j in range(len(path))]))
            for name, made in candidates.items()
        }
    measured = {
        "p_value": max(found.walk_p, found.line_p),
        "walk_p": found.walk_p,
        "line_p": found.line_p,
        "r2": found.r2,
        "loss_ratio": means["restored"] / min(means["random"], means["principal"]),
        "loss_path": float(losses.mean()),
    }
    return measured | {f"loss_{name}": value for name, value in means.items()}


def _path(source: str, layer: int) -> Arrays:
    design = DESIGNS[source]

    def compute() -> dict[str, np.ndarray]:
        model, tokenizer = model_of(source)
        lengths = np.linspace(0.1, 3.0, design.helix_lengths)
        vectors, losses = steering_path(
            model, tokenizer, SWAP, layer, lengths.tolist(), template=PLAIN, steps=design.helix_steps
        )
        return {"path": vectors, "losses": losses}

    return kept(source, "helix", {"layer": layer, "swap": repr(SWAP)}, compute)
