"""The figures of the study of JEPA guidance: paths, intervals, calibration, error bound, ablations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.methods.jepa_guidance.study_claims import K
from assay.methods.jepa_guidance.study_galleries import galleries
from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colour, marker and line of every arm, the same in all figures.
STYLES: Mapping[str, tuple[str, str, str, str]] = {
    "jepa": ("JEPA, Gaussian encoder", "C0", "o", "-"),
    "jepa-reversed": ("Gaussian, turned round", "C0", "v", ":"),
    "jepa-invariance": ("JEPA, invariant encoder", "C3", "o", "-"),
    "jepa-uncalibrated": ("invariant, paper's sign", "C3", "v", ":"),
    "random": ("random shifts", "C5", "x", "-"),
    "self-guided": ("self-guided (SGMS)", "C1", "s", "-"),
    "minority": ("minority guidance", "C1", "^", "--"),
    "boost-and-skip": ("Boost-and-Skip", "C2", "s", "-"),
    "temperature": ("temperature", "C2", "^", "--"),
    "neighbours": ("pixel neighbours", "C4", "D", "-"),
    "cads": ("CADS", "C2", "D", "--"),
    "minority-prompt": ("MinorityPrompt", "C1", "D", "--"),
}
MATCHED = (
    ("knn_world", "kNN distance,\nworld"),
    ("world_rare", "share rare\nin the world"),
    ("generator_rare", "share rare\nfor the generator"),
    ("precision", "precision"),
    ("recall", "recall"),
    ("coverage", "coverage"),
    ("entropy", "class\nentropy"),
)
ENCODERS = {"vicreg": "VICReg, convolutions", "ijepa": "I-JEPA, patches"}
LEVEL = 0.95

Rows = Sequence[FinishedTrial]


def panels(finished: Rows) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    parts: dict[str, list[FinishedTrial]] = {}
    for row in finished:
        parts.setdefault(str(row.setting["part"]), []).append(row)
    drawn: dict[str, Panel | None] = {}
    if guided := parts.get("guidance"):
        free = [row for row in guided if row.setting["condition"] == "none"]
        digits = [row for row in free if row.setting["data"] == "digits"]
        shown = galleries(guided)
        drawn["images"] = shown["images"]
        drawn["paths"] = _paths(digits)
        drawn["matched"] = _matched(digits, "digits, no condition")
        drawn["classes"] = shown["classes"]
    if calibrated := parts.get("calibration"):
        drawn["calibration"] = _calibration(calibrated)
    if measured := parts.get("surrogate"):
        drawn["surrogate"] = _surrogate(measured)
    if ablated := parts.get("ablation"):
        drawn["ablation"] = _ablation(ablated)
    if guided:
        drawn["mnist"] = shown["mnist"]
        drawn["conditions"] = _conditions(guided)
    return {name: panel for name, panel in drawn.items() if panel is not None}


# ------------------------------------------------------------------------------------------------- guidance


def _paths(rows: Rows) -> Panel | None:
    arms = [arm for arm in STYLES if any(row.arm == arm for row in rows)]
    if not arms:
        return None
    figure, all_axes = _subplots(3, (11, 4.2), sharey=True)
    for axes, (metric, name) in zip(
        all_axes,
        (("recall", "recall"), ("precision", "precision"), ("entropy", "class entropy")),
        strict=True,
    ):
        for arm in arms:
            own = [row for row in rows if row.arm == arm]
            x, y = _path(own, metric), _path(own, "knn_world")
            label, colour, marker, line = STYLES[arm]
            axes.plot(x, y, line, color=colour, marker=marker, markersize=4, label=label, linewidth=1.2)
        start = float(np.mean([row.measurements[f"{metric}:0"] for row in rows]))
        axes.axvline(start, color="gray", linewidth=0.8)
        if metric != "entropy":
            axes.axvline(0.8 * start, color="gray", linewidth=0.8, linestyle="--")
        axes.set_xlabel(name)
    all_axes[0].set_ylabel("kNN distance to the world's images")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    return Panel(
        figure,
        "Paths of strengths, means over seeds: from the unguided sampler (vertical line) to too much. "
        "Upwards is rarer in the world; to the left is less diverse or less valid. Dashed: 80% of the "
        "unguided sampler's recall and precision, the limit within which arms are compared.",
    )


def _matched(rows: Rows, where: str) -> Panel | None:
    arms = [arm for arm in ("plain", *STYLES) if any(row.arm == arm for row in rows)]
    if len(arms) < 2:
        return None
    figure, all_axes = _subplots(len(MATCHED), (12, 0.32 * len(arms) + 1.2), sharey=True)
    places = np.arange(len(arms))[::-1]
    for axes, (metric, name) in zip(all_axes, MATCHED, strict=True):
        for place, arm in zip(places, arms, strict=True):
            values = [row.measurements[f"matched_{metric}"] for row in rows if row.arm == arm]
            colour = STYLES[arm][1] if arm in STYLES else "gray"
            marker = STYLES[arm][2] if arm in STYLES else "o"
            axes.errorbar(
                np.mean(values), place, xerr=_half_width(values), fmt=marker, color=colour, markersize=4
            )
        axes.set_title(name, fontsize="small")
        axes.grid(axis="y")
        axes.tick_params(axis="x", labelsize="small")
    all_axes[0].set_yticks(places, [STYLES[arm][0] if arm in STYLES else "no guidance" for arm in arms])
    return Panel(
        figure,
        f"The rarest point of every path at which recall and precision are at least 80% of the unguided "
        f"sampler's ({where}): means over seeds with 95% intervals (Student's t). A collapse would show in "
        f"recall, coverage and entropy. Arms that make samples commoner stay at the start.",
    )


def _conditions(rows: Rows) -> Panel | None:
    cells = [
        ("digits", "class", "digits, asked for by class"),
        ("mnist", "text", "MNIST, asked for by caption"),
        ("mnist", "none", "MNIST, no condition"),
    ]
    figure, all_axes = _subplots(3, (11, 4))
    any_shown = False
    for axes, (data, condition, title) in zip(all_axes, cells, strict=True):
        own = [row for row in rows if row.setting["data"] == data and row.setting["condition"] == condition]
        # Asked for by class, samples show the class nearly always.
        metric = "alignment" if condition == "text" else "recall"
        for arm in [arm for arm in STYLES if any(row.arm == arm for row in own)]:
            chosen = [row for row in own if row.arm == arm]
            label, colour, marker, line = STYLES[arm]
            x, y = _path(chosen, metric), _path(chosen, "knn_world")
            axes.plot(x, y, line, color=colour, marker=marker, markersize=4, label=label, linewidth=1.2)
            any_shown = True
        axes.set(xlabel="shows what was asked for" if metric == "alignment" else "recall", title=title)
        if own:
            axes.legend(fontsize="x-small")
    all_axes[0].set_ylabel("kNN distance to the world's images")
    if not any_shown:
        return None
    return Panel(
        figure,
        "Paths of strengths with conditions (guidance scale 1.5), and on a second set of images; means over "
        "seeds. In the middle the question is whether samples still show the digit that the caption asked "
        "for, by a support-vector machine.",
    )


# ---------------------------------------------------------------------- calibration, surrogate, ablation


def _calibration(rows: Rows) -> Panel | None:
    lejepa = [row for row in rows if row.arm == "lejepa"]
    if not lejepa:
        return None
    figure, (left, middle, right) = _subplots(3, (11, 3.8))
    weights = sorted({float(row.setting["weight"]) for row in lejepa})
    for axes, weight in ((left, weights[-1]), (middle, weights[0])):
        _scatter(axes, lejepa, weight)
    for data, name, marker in (("digits", "digits", "o"), ("mnist", "MNIST", "s")):
        own = [row for row in lejepa if row.setting["data"] == data]
        found = sorted({float(row.setting["weight"]) for row in own})
        if not found:
            continue
        cells = [
            [row.measurements["rho"] for row in own if row.setting["weight"] == weight] for weight in found
        ]
        right.errorbar(found, *_mean_and_half_width(cells), fmt=f"{marker}-", label=f"LeJEPA, {name}")
    for place, (arm, name) in enumerate(ENCODERS.items()):
        values = [row.measurements["rho"] for row in rows if row.arm == arm]
        if values:
            right.errorbar(
                1.12 + 0.1 * place,
                np.mean(values),
                _half_width(values),
                fmt="D",
                color=f"C{3 + place}",
                label=name,
            )
    right.axhline(0, color="gray", linewidth=0.8)
    right.set(xlabel="weight of the Gaussian term", ylabel="rho: above 0, low scores are rare", ylim=(-1, 1))
    right.legend(fontsize="x-small")
    return Panel(
        figure,
        "What the score says about rarity. Left and middle: held-out digits of one seed, for LeJEPA encoders"
        " that differ in one number, the weight of the term that makes embeddings Gaussian; the rest is the "
        "weight of the agreement of views. Right: rank correlation of the negative score with the distance "
        "to the world's images, means over seeds with 95% intervals. The paper's sign is above zero.",
    )


def _scatter(axes: Axes, rows: Rows, weight: float) -> None:
    from assay.methods.jepa_guidance.metrics import average_knn_distance
    from assay.methods.jepa_guidance.study_material import Bench, reference_features, scorer

    own = [row for row in rows if row.setting["data"] == "digits" and row.setting["weight"] == weight]
    if not own:
        axes.set_axis_off()
        return
    bench = Bench.of(min(own, key=lambda row: row.seed).trial)
    score = scorer(bench, f"lejepa-{weight:g}").score(bench.held_out).numpy()
    features = reference_features("digits")
    distance = average_knn_distance(features["held_out"], features["world"])
    rare = np.isin(bench.images.held_out.labels, bench.images.world_rare)
    for chosen, colour, name in ((~rare, "C0", "0 to 4"), (rare, "C1", "5 to 9, rare")):
        axes.plot(score[chosen], distance[chosen], ".", color=colour, markersize=3, label=name)
    axes.set(xlabel="JEPA-SCORE (nats)", ylabel="kNN distance to the world", title=f"weight {weight:g}")
    axes.legend(fontsize="x-small")


def _surrogate(rows: Rows) -> Panel | None:
    figure, (left, middle, right) = _subplots(3, (11, 3.8))
    own = [row for row in rows if row.setting["k"] == K]
    powers = sorted({int(row.setting["q"]) for row in own})
    cells = [[row.measurements["e_rsvd"] for row in own if row.setting["q"] == q] for q in powers]
    left.errorbar(powers, *_mean_and_half_width(cells), fmt="o-")
    left.set(xlabel="power iterations q", ylabel="error of the surrogate (nats)", ylim=(0, None))
    for metric, name, marker in (
        ("residual", "missed by the subspace", "o"),
        ("expected_residual", "bound on its expectation", "s"),
    ):
        cells = [[row.measurements[metric] for row in own if row.setting["q"] == q] for q in powers]
        middle.errorbar(powers, *_mean_and_half_width(cells), fmt=f"{marker}-", label=name)
    middle.set(xlabel="power iterations q", ylabel="spectral norm", yscale="log")
    middle.legend(fontsize="x-small")
    chosen = [row for row in rows if row.setting["q"] == 2]
    counts = sorted({int(row.setting["k"]) for row in chosen})
    for metric, name, marker in (
        ("cosine_leading", "with the exact top-k gradient", "o"),
        ("cosine_full", "with the full score's gradient", "s"),
    ):
        cells = [[row.measurements[metric] for row in chosen if row.setting["k"] == k] for k in counts]
        right.errorbar(counts, *_mean_and_half_width(cells), fmt=f"{marker}-", label=name)
    right.set(xlabel="singular values k (q = 2)", ylabel="cosine of the gradients", ylim=(0, 1.05))
    right.set_xticks(counts)
    right.legend(fontsize="x-small", loc="lower right")
    return Panel(
        figure,
        f"The randomised surrogate on held-out digits, guiding encoder, 2 additional directions; means over "
        f"seeds with 95% intervals. Left and middle: k = {K}. The bound is that of Halko, Martinsson and "
        f"Tropp.",
    )


def _ablation(rows: Rows) -> Panel | None:
    names = {
        "base": "k 9, tau 0.8",
        "tau-1": "tau 1",
        "tau-0.4": "tau 0.4",
        "k-3": "k 3",
        "k-15": "k 15",
        "exact": "full score",
    }
    arms = [arm for arm in names if any(row.arm == arm for row in rows)]
    metrics = (
        ("score", "JEPA-SCORE\n(nats)"),
        ("second_score", "second\nencoder's"),
        *[(metric, name) for metric, name in MATCHED if metric not in ("generator_rare", "world_rare")],
    )
    figure, all_axes = _subplots(len(metrics), (12, 3), sharey=True)
    places = np.arange(len(arms))[::-1]
    for axes, (metric, name) in zip(all_axes, metrics, strict=True):
        for place, arm in zip(places, arms, strict=True):
            values = [row.measurements[metric] for row in rows if row.arm == arm]
            axes.errorbar(np.mean(values), place, xerr=_half_width(values), fmt="o", color="C0", markersize=4)
        axes.set_title(name, fontsize="small")
        axes.tick_params(axis="x", labelsize="small")
        axes.grid(axis="y")
    all_axes[0].set_yticks(places, [names[arm] for arm in arms])
    return Panel(
        figure,
        "Guidance with one thing changed, the sum of all shifts being 1.6: means over seeds with 95% "
        "intervals.",
    )


def _subplots(count: int, size: tuple[float, float], **options: Any) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, figsize=size, layout="constrained", **options)
    return figure, list(axes[0])


def _path(rows: Rows, metric: str) -> list[float]:
    """Means over seeds of a metric at every point of a path."""
    count = sum(name.startswith(f"{metric}:") for name in rows[0].measurements)
    return [float(np.mean([row.measurements[f"{metric}:{i}"] for row in rows])) for i in range(count)]


def _half_width(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of a mean; nothing for a single value."""
    from scipy import stats

    if len(values) < 2:
        return 0.0
    quantile = float(stats.t.isf((1 - LEVEL) / 2, len(values) - 1))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _mean_and_half_width(cells: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [float(np.mean(cell)) for cell in cells], [_half_width(cell) for cell in cells]
