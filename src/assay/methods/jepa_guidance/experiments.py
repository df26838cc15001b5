"""What the trials of the study measure; see `study` for what the parts are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.methods.jepa_guidance.baselines import (
    CADS,
    BoostAndSkip,
    MinorityGuidance,
    MinorityPrompt,
    NeighbourGuidance,
    RandomDirection,
    SelfGuidedMinority,
)
from assay.methods.jepa_guidance.datasets import CAPTIONS, CLASSES
from assay.methods.jepa_guidance.guidance_config import JEPAGuidanceConfig
from assay.methods.jepa_guidance.guided_sampling import guided_sample
from assay.methods.jepa_guidance.jepa_shift import JEPAShift
from assay.methods.jepa_guidance.metrics import (
    average_knn_distance,
    class_entropy,
    class_shares,
    frechet_distance,
    jensen_shannon,
    local_outlier_factor,
    manifold_metrics,
    rarity_score,
)
from assay.methods.jepa_guidance.study import ABLATED, STRENGTHS
from assay.methods.jepa_guidance.study_claims import KEPT
from assay.methods.jepa_guidance.study_material import (
    GAUSSIAN,
    INVARIANT,
    Bench,
    caption_embeddings,
    generator,
    kept_samples,
    minority_classifier,
    reference_features,
    scorer,
)
from assay.study import Trial

Measured = dict[str, float]
CFG = 1.5
# Points between two strengths at which the path is interpolated.
POINTS = 100
GUIDING, INVARIANCE = f"lejepa-{GAUSSIAN:g}", f"lejepa-{INVARIANT:g}"


# ---------------------------------------------------------------------------------------------- calibration


def calibration(trial: Trial) -> Measured:
    """How well the negative score ranks held-out images by their distance to the world's images."""
    from sklearn.metrics import roc_auc_score

    bench = Bench.of(trial)
    kind = f"lejepa-{trial.setting['weight']:g}" if trial.arm == "lejepa" else trial.arm
    judged = scorer(bench, kind)
    images = bench.images
    spectrum = judged.spectrum(bench.held_out).double()
    logs = spectrum.clamp_min(1e-6).log()
    score, leading = logs.sum(dim=1).numpy(), logs[:, :9].sum(dim=1).numpy()
    embedding = judged.embed(bench.held_out).double()
    prior = -0.5 * embedding.square().sum(dim=1).numpy()
    features = reference_features(bench.data)
    distance = average_knn_distance(features["held_out"], features["world"])
    rare = np.isin(images.held_out.labels, images.world_rare)
    shuffled = judged.score(_shuffled(bench.held_out, bench.seed)).double().numpy()
    both = np.concatenate([score, shuffled])
    eigenvalues = np.linalg.eigvalsh(np.cov(embedding.numpy(), rowvar=False)).clip(0)
    measured = {
        "rho": _correlation(-score, distance),
        "rho_leading": _correlation(-leading, distance),
        "rho_with_prior": _correlation(-(score + prior), distance),
        "auroc": float(roc_auc_score(rare, -score)),
        "auroc_distance": float(roc_auc_score(rare, distance)),
        "auroc_shuffled": float(roc_auc_score(np.arange(len(both)) >= len(score), -both)),
        "score": float(score.mean()),
        "score_deviation": float(score.std()),
        "effective_rank": float(eigenvalues.sum() ** 2 / np.square(eigenvalues).sum()),
    }
    if judged.calibration is not None:
        found = judged.calibration
        measured |= {"sign": found.sign, "calibrated_rho": found.rho}
        measured |= {"calibrated_low": found.rho_low, "calibrated_high": found.rho_high}
    return measured


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def _shuffled(images: Tensor, seed: int) -> Tensor:
    """Images whose pixels are permuted, each in its own way: as bright as real ones, and none of them."""
    order = np.random.default_rng(seed).permuted(
        np.tile(np.arange(images[0].numel()), (len(images), 1)), axis=1
    )
    return images.flatten(1).gather(1, torch.from_numpy(order)).view_as(images)


# ------------------------------------------------------------------------------------------------- sampling


def settings_of(arm: str, strength: float, bench: Bench) -> tuple[dict[str, Any], JEPAGuidanceConfig]:
    """The arguments of `guided_sample` that make an arm, and the configuration of its steps."""
    config = JEPAGuidanceConfig(eta_total=strength, seed=bench.seed)
    eta = config.step_size(bench.design.sampler_steps)
    if arm.startswith("jepa"):
        own = {
            "jepa": {"direction": "rare"},
            "jepa-reversed": {"direction": "common"},
            "jepa-invariance": {"direction": "rare"},
            "jepa-uncalibrated": {"direction": "rare", "assume_sign": 1},
        }[arm]
        config = JEPAGuidanceConfig(eta_total=strength, seed=bench.seed, **own)
        kind = INVARIANCE if arm in ("jepa-invariance", "jepa-uncalibrated") else GUIDING
        return {"guidance": JEPAShift(scorer(bench, kind), config)}, config
    shape = _shape(bench)
    match arm:
        case "plain":
            return {}, config
        case "random":
            return {"guidance": RandomDirection(eta, bench.seed)}, config
        case "self-guided":
            return {"guidance": SelfGuidedMinority(eta, seed=bench.seed)}, config
        case "minority":
            return {"guidance": MinorityGuidance(minority_classifier(bench), eta)}, config
        case "neighbours":
            return {"guidance": NeighbourGuidance(torch.from_numpy(bench.images.world.images), eta)}, config
        case "boost-and-skip":
            boost = BoostAndSkip(strength, skip=1)
            # Another seed than the steps': given its start, the sampler draws the first step's noise first.
            start = torch.Generator().manual_seed(20_000 + bench.seed)
            return {"latents": boost.latents(shape, start), "first_step": boost.skip}, config
        case "temperature":
            return {"noise_scale": strength}, config
        case "cads":
            return {"condition": CADS(bench.design.sampler_steps, strength, seed=bench.seed)}, config
        case "minority-prompt":
            prompt = MinorityPrompt(strength, seed=bench.seed)
            return {"guidance": prompt, "condition": prompt.condition}, config
    raise ValueError(f"unknown arm {arm!r}")


def samples(bench: Bench, condition: str, arm: str, strength: float = 0.0) -> Float[np.ndarray, "n 1 h w"]:
    """A set of samples; all sets of a seed start from the same noise."""

    def draw() -> Tensor:
        options, config = settings_of(arm, strength, bench)
        return _draw(bench, condition, config, options)

    return kept_samples(bench, {"condition": condition, "arm": arm, "strength": strength}, draw)


def _draw(bench: Bench, condition: str, config: JEPAGuidanceConfig, options: Mapping[str, Any]) -> Tensor:
    denoiser, scheduler = generator(bench)
    conditions: dict[str, Any] = {}
    wanted = torch.from_numpy(wanted_classes(bench))
    if condition == "class":
        conditions = {"class_labels": wanted, "guidance_scale": CFG}
    elif condition == "text":
        template = torch.arange(len(wanted)) // CLASSES % len(CAPTIONS)
        texts = caption_embeddings()[wanted, template].unsqueeze(1)
        conditions = {"encoder_hidden_states": texts, "guidance_scale": CFG}
    return guided_sample(
        denoiser,
        scheduler,
        config=config,
        shape=_shape(bench),
        num_inference_steps=bench.design.sampler_steps,
        generator=_noise(bench),
        **conditions,
        **options,
    )


def wanted_classes(bench: Bench) -> np.ndarray:
    """The class that is asked for, of every sample of a conditional set."""
    return np.arange(bench.design.samples) % CLASSES


def _shape(bench: Bench) -> tuple[int, ...]:
    return (bench.design.samples, *bench.images.real.images.shape[1:])


def _noise(bench: Bench) -> torch.Generator:
    return torch.Generator().manual_seed(10_000 + bench.seed)


def measure(bench: Bench, condition: str, images: Float[np.ndarray, "n 1 h w"]) -> Measured:
    """Rarity, validity and diversity of a set of samples."""
    judge, features = bench.judge, reference_features(bench.data)
    found = judge.features(images)
    classes = judge.classes(images)
    shares = class_shares(classes, CLASSES)
    real = class_shares(bench.images.held_out.labels, CLASSES)
    pixels = torch.from_numpy(images)
    rarity = rarity_score(found, features["real"])
    measured = {
        "score": float(scorer(bench, GUIDING).score(pixels).mean()),
        "second_score": float(scorer(bench, "second").score(pixels).mean()),
        "knn_world": float(average_knn_distance(found, features["world"]).mean()),
        "knn_generator": float(average_knn_distance(found, features["generator"]).mean()),
        "outlier_world": float(local_outlier_factor(found, features["world"]).mean()),
        # No sample on the manifold: no rarity that counts.
        "rarity": float(np.nanmean(rarity)) if np.isfinite(rarity).any() else 0.0,
        "frechet_rare": frechet_distance(found, features["rare"]),
        "world_rare": float(shares[list(bench.images.world_rare)].sum()),
        "generator_rare": float(shares[list(bench.images.generator_rare)].sum()),
        "entropy": class_entropy(shares),
        "divergence": jensen_shannon(shares, real),
        **asdict(manifold_metrics(found, features["real"])),
    }
    if condition != "none":
        measured["alignment"] = float((classes == wanted_classes(bench)).mean())
    return measured


def guidance(trial: Trial) -> Measured:
    """An arm along its path of strengths, and at its rarest point that is still valid and diverse."""
    bench, condition = Bench.of(trial), str(trial.setting["condition"])
    plain = measure(bench, condition, samples(bench, condition, "plain"))
    path = [plain]
    for strength in STRENGTHS.get(trial.arm, ()):
        path.append(measure(bench, condition, samples(bench, condition, trial.arm, strength)))
    measured = {f"{name}:{i}": value for i, point in enumerate(path) for name, value in point.items()}
    best, where = matched(path)
    measured |= {f"matched_{name}": value for name, value in best.items()}
    measured["matched_at"] = where
    measured["preference"] = (best["world_rare"] - plain["world_rare"]) - (
        best["generator_rare"] - plain["generator_rare"]
    )
    if trial.arm != "plain":
        strongest = path[-1]
        measured["strongest_score_change"] = strongest["score"] - plain["score"]
        measured["strongest_recall"] = strongest["recall"] / max(plain["recall"], 1e-9)
        measured["strongest_knn_world"] = strongest["knn_world"]
    return measured


def matched(path: list[Measured]) -> tuple[Measured, float]:
    """The rarest point of a path whose recall and precision are at least `KEPT` of those of its first point.

    Metrics are interpolated linearly between the points of the path. The first point always qualifies.

    Returns:
        The metrics there, and where it lies: 1.5 is halfway between the points 1 and 2.
    """
    if len(path) == 1:
        return dict(path[0]), 0.0
    where = np.linspace(0, len(path) - 1, (len(path) - 1) * POINTS + 1)
    table = {
        name: np.interp(where, np.arange(len(path)), [point[name] for point in path]) for name in path[0]
    }
    valid = (table["recall"] >= KEPT * path[0]["recall"]) & (
        table["precision"] >= KEPT * path[0]["precision"]
    )
    best = int(np.argmax(np.where(valid, table["knn_world"], -np.inf)))
    return {name: float(values[best]) for name, values in table.items()}, float(where[best])


# -------------------------------------------------------------------------------------- ablation, surrogate


def ablation(trial: Trial) -> Measured:
    """Guidance at one strength with one thing changed."""
    bench = Bench.of(trial)
    own: dict[str, Any] = {"method": "exact"} if trial.arm == "exact" else {}
    base = JEPAGuidanceConfig(eta_total=ABLATED)
    if trial.arm.startswith("tau-"):
        # As in the paper, a guided step is as long as before: with a larger tau there are more of them.
        own = {"tau": float(trial.arm.removeprefix("tau-"))}
    elif trial.arm.startswith("k-"):
        own = {"k": int(trial.arm.removeprefix("k-"))}
    config = JEPAGuidanceConfig(eta=base.step_size(bench.design.sampler_steps), seed=bench.seed, **own)

    def draw() -> Tensor:
        return _draw(bench, "none", config, {"guidance": JEPAShift(scorer(bench, GUIDING), config)})

    images = kept_samples(bench, {"ablation": trial.arm}, draw)
    return measure(bench, "none", images)


def surrogate(trial: Trial) -> Measured:
    """The surrogate's value and gradient beside exact ones, on held-out images."""
    bench = Bench.of(trial)
    k, q = int(trial.setting["k"]), int(trial.setting["q"])
    judged = scorer(bench, GUIDING)
    images = bench.held_out[: bench.design.surrogates]
    bound = judged.error_bound(images, k, 2, q, seed=bench.seed)
    z = judged.preprocess(images)
    found, _ = judged.surrogate_gradient(z, k=k, oversample=2, power_iters=q, seed=bench.seed)
    leading, full = exact_gradients(judged.encoder, z, k)
    gap = bound.residual - bound.expected_residual
    return {
        "e_rsvd": float(bound.e_rsvd.mean()),
        "e_rsvd_least": float(bound.e_rsvd.min()),
        "negative_error": float((-bound.e_rsvd.min()).clamp_min(0)),
        "e_trunc": float(bound.e_trunc.mean()),
        "residual": float(bound.residual.mean()),
        "expected_residual": float(bound.expected_residual.mean()),
        "within_bound": float(gap.mean() <= 0),
        "identity": float((bound.js - bound.js_surrogate - bound.e_rsvd - bound.e_trunc).abs().max()),
        "cosine_leading": _cosine(found.gradients, leading),
        "cosine_full": _cosine(found.gradients, full),
    }


def exact_gradients(
    encoder: torch.nn.Module, z: Float[Tensor, "batch ..."], k: int
) -> tuple[Float[Tensor, "batch ..."], Float[Tensor, "batch ..."]]:
    """The gradients of the top-k and of the full log-sum of singular values, through the whole Jacobian.

    It shares nothing with the method's own derivatives: reverse-mode Jacobians and autograd through
    `svdvals`, in double precision.
    """
    double = _in_double(encoder)

    def logs(point: Tensor) -> Tensor:
        jacobian = torch.func.jacrev(lambda one: double(one.unsqueeze(0))[0])(point)
        return torch.linalg.svdvals(jacobian.flatten(1)).clamp_min(1e-6).log()

    points = z.detach().double()
    leading = torch.stack([torch.func.grad(lambda p: logs(p)[:k].sum())(point) for point in points])
    full = torch.stack([torch.func.grad(lambda p: logs(p).sum())(point) for point in points])
    return leading, full


def _in_double(encoder: torch.nn.Module) -> torch.nn.Module:
    from copy import deepcopy

    return deepcopy(encoder).double()


def _cosine(first: Tensor, second: Tensor) -> float:
    return float(
        torch.nn.functional.cosine_similarity(first.double().flatten(1), second.double().flatten(1)).mean()
    )


PARTS: Mapping[str, Callable[[Trial], Measured]] = {
    "calibration": calibration,
    "guidance": guidance,
    "ablation": ablation,
    "surrogate": surrogate,
}
