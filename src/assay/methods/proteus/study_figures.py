"""The figures of the study of proteus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "proteus": "proteus",
    "proteus-compensated": "proteus, not distilled",
    "proteus-plain": "proteus, not compensated",
    "proteus-single": "proteus, one generator",
    "1mad": "1MAD",
    "3inst": "3INST",
    "mul1": "mul1",
    "mcg": "mcg",
    "hyb": "HYB (table)",
    "table": "Gaussian table",
    "lloyd-max": "best scalar code",
    "ldlq-scalar": "LDLQ, scalar",
    "gptq": "GPTQ (2.5 bits)",
    "rtn": "rounding (2.5 bits)",
    "original": "original",
}
# An arm keeps its colour in all figures.
COLOURS = {"proteus": "C0", "1mad": "C1", "3inst": "C2", "mul1": "C3", "hyb": "C4", "table": "C5"}
RATE_DISTORTION = 1 / 16
SCALAR = 0.1175


def panels(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    drawn = {
        "codes": (_codes, "gaussian"),
        "overlap": (_overlap, "vetting"),
        "layers": (_layers, "layer"),
        "compensation": (_compensation, "layer"),
        "models": (_models, "model"),
        "bytes": (_bytes, "bytes"),
        "decode": (_decode, "decode"),
    }
    made: dict[str, Panel] = {}
    for name, (draw, part) in drawn.items():
        rows = [trial for trial in finished if trial.setting["part"] == part]
        panel = draw(rows) if rows else None
        if panel is not None:
            made[name] = panel
    return made


def _codes(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(7, 4.2))
    for arm, colour in COLOURS.items():
        windows = sorted({row.setting["window"] for row in rows if row.arm == arm})
        cells = [_values(rows, "mse", arm=arm, window=window) for window in windows]
        if windows:
            axes[0].errorbar(
                windows, *_mean_and_error(cells), marker="o", capsize=3, label=NAMES[arm], color=colour
            )
    axes[0].axhline(RATE_DISTORTION, color="gray", linestyle="--", linewidth=0.8)
    axes[0].annotate(
        "rate-distortion limit",
        (0.99, RATE_DISTORTION),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color="gray",
    )
    axes[0].set(xlabel="window (bits)", ylabel="mean squared error")
    axes[0].set_xticks(sorted({row.setting["window"] for row in rows}))
    axes[0].legend()
    return Panel(
        figure,
        "A standard Gaussian source at 2 bits a value, means over seeds with their standard errors. The "
        "best scalar "
        f"code, far above the frame, costs {SCALAR}.",
    )


def _overlap(rows: Sequence[FinishedTrial]) -> Panel | None:
    from scipy.stats import rankdata

    scores = {
        "branch-coverage": "branch coverage",
        "overlap-correlation": "overlap correlation",
        "wasserstein": "distance of values to a Gaussian",
    }
    first = [row for row in rows if row.seed == 0 and row.setting["window"] == 10]
    shown = [arm for arm in scores if any(row.arm == arm for row in first)]
    if not shown:
        return None
    figure, axes = _subplots(len(shown), figsize=(10, 3.4), sharey=True)
    for axis, arm in zip(axes, shown, strict=True):
        row = next(row for row in first if row.arm == arm)
        numbers = [name.split(":")[1] for name in row.measurements if name.startswith("score:")]
        score, error = (
            np.array([row.measurements[f"{kind}:{number}"] for number in numbers])
            for kind in ("score", "mse")
        )
        axis.plot(rankdata(score), error, "o", markersize=4, alpha=0.7, color="C0")
        correlation = np.mean(
            [
                other.measurements["spearman"]
                for other in rows
                if other.arm == arm and other.setting["window"] == 10
            ]
        )
        axis.set(xlabel=f"rank by {scores[arm]}", title=f"Spearman {correlation:.2f}")
    # A few random generators are so bad that the others would be a line.
    axes[0].set(ylabel="mean squared error", yscale="log")
    return Panel(
        figure,
        "Random generators of equal mean and variance (a dot each, window of 10 bits), ranked by a score "
        "that needs no "
        "encoding, against the error that encoding then has. The correlations are means over all seeds.",
    )


def _layers(rows: Sequence[FinishedTrial]) -> Panel | None:
    scalar = _by_cell(rows, "ldlq-scalar", "held_out_error")
    ratios = {
        arm: [
            value / scalar[cell]
            for cell, value in _by_cell(rows, arm, "held_out_error").items()
            if cell in scalar
        ]
        for arm in dict.fromkeys(row.arm for row in rows)
    }
    ratios = {arm: values for arm, values in ratios.items() if values}
    if not ratios:
        return None
    figure, axes = _subplots(1, figsize=(7.5, 4.6))
    order = sorted(ratios, key=lambda arm: float(np.mean(ratios[arm])), reverse=True)
    for place, arm in enumerate(order):
        spread = np.linspace(-0.2, 0.2, len(ratios[arm]))
        axes[0].plot(ratios[arm], place + spread, "o", markersize=4, alpha=0.7, color="C0")
        axes[0].plot([np.mean(ratios[arm])] * 2, [place - 0.35, place + 0.35], color="C1", linewidth=2)
    axes[0].set_yticks(range(len(order)), [NAMES[arm] for arm in order])
    axes[0].set_xscale("log", base=2)
    ticks = [0.5, 1, 2, 4, 8]
    axes[0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].set(xlabel="error for held-out text, as a multiple of the scalar code's with the same feedback")
    return Panel(
        figure,
        "Layers of SmolLM2-135M at a window of 12 bits: a dot per layer and seed, a bar at the mean. Left "
        "is better.",
    )


def _compensation(rows: Sequence[FinishedTrial]) -> Panel | None:
    plain, full = (_by_cell(rows, arm, "held_out_error") for arm in ("proteus-plain", "proteus"))
    cells = [cell for cell in plain if cell in full]
    if not cells:
        return None
    names = list(dict.fromkeys(cell[0] for cell in cells))
    figure, axes = _subplots(1, figsize=(7.5, 3.8))
    for offset, values, label, colour in ((-0.2, plain, "before", "C1"), (0.2, full, "after", "C0")):
        means = [np.mean([values[cell] for cell in cells if cell[0] == name]) for name in names]
        axes[0].bar(np.arange(len(names)) + offset, means, 0.38, label=label, color=colour)
    short = [
        name.removeprefix("model.layers.").replace("self_attn.", "").replace("mlp.", "") for name in names
    ]
    axes[0].set_xticks(range(len(names)), short, rotation=30, ha="right")
    axes[0].set(ylabel="error for held-out text")
    axes[0].legend(title="compensation")
    return Panel(
        figure,
        "What channel scales that are fitted after the indices repair, layer by layer. The packed indices "
        "are the same.",
    )


def _models(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(2, figsize=(10, 3.8))
    arms = [arm for arm in NAMES if any(row.arm == arm for row in rows)]
    order = sorted(arms, key=lambda arm: np.mean(_values(rows, "nats", arm=arm)), reverse=True)
    for axis, metric, label in (
        (axes[0], "perplexity", "perplexity of held-out text"),
        (axes[1], "kl", "divergence from the original (nats a token)"),
    ):
        for place, arm in enumerate(order):
            values = _values(rows, metric, arm=arm)
            axis.barh(place, np.mean(values), 0.6, color="C0" if arm.startswith("proteus") else "C1")
            axis.plot(values, [place] * len(values), "o", markersize=4, color="C4")
        axis.set_yticks(range(len(order)), [NAMES[arm] for arm in order])
        axis.set(xlabel=label)
    axes[0].set_xscale("log")
    axes[1].set_yticklabels([])
    return Panel(
        figure,
        "All 210 linear layers of SmolLM2-135M quantized, window of 10 bits; a dot per seed.",
    )


def _bytes(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(7.5, 3.8))
    models = [str(row.setting["model"]) for row in rows]
    kinds = (("bf16", "bf16"), ("hyb", "HYB"), ("proteus", "proteus"))
    for offset, (kind, label) in zip((-0.27, 0, 0.27), kinds, strict=True):
        stored = np.array([row.measurements[f"{kind}_stored"] for row in rows])
        looked_up = np.array([row.measurements[f"{kind}_looked_up"] for row in rows])
        dense = np.array([row.measurements["bf16_stored"] for row in rows])
        places = np.arange(len(models)) + offset
        colour = {"bf16": "C2", "hyb": "C4", "proteus": "C0"}[kind]
        axes[0].bar(places, stored / dense, 0.25, color=colour, label=label)
        if looked_up.any():
            axes[0].bar(
                places,
                looked_up / dense,
                0.25,
                bottom=stored / dense,
                color=colour,
                alpha=0.4,
                label=f"{label}, read from its table",
            )
    axes[0].set_xticks(range(len(models)), models)
    axes[0].set(ylabel="bytes read for a token, bf16 = 1")
    figure.legend(loc="outside upper center", ncols=4)
    return Panel(
        figure,
        "Bytes of the quantized linear layers that one token touches, counted from the formats. Reads of "
        "HYB's 2 KB "
        "table are served by a cache or by shared memory, the others by main memory.",
    )


def _decode(rows: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, figsize=(7.5, 3.6))
    peers = (
        ("speed_of_table", "a table decoder", "C4"),
        ("speed_of_float32", "float32", "C1"),
        ("speed_of_bfloat16", "bfloat16", "C2"),
    )
    shapes = [str(row.setting["shape"]) for row in rows]
    for offset, (metric, label, colour) in zip((-0.27, 0, 0.27), peers, strict=True):
        axes[0].bar(
            np.arange(len(rows)) + offset,
            [row.measurements[metric] for row in rows],
            0.25,
            color=colour,
            label=label,
        )
    axes[0].axhline(1, color="gray", linestyle="--", linewidth=0.8)
    axes[0].set_xticks(range(len(shapes)), shapes)
    axes[0].set(ylabel="times as fast as", xlabel="shape of the layer")
    axes[0].legend()
    return Panel(
        figure,
        "One matrix-vector product on one thread, float activations: how many times as fast proteus is as "
        "each peer. "
        "Below the dashed line it is slower.",
    )


def _subplots(count: int, **options: Any) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, **options)
    return figure, list(axes[0])


def _values(rows: Sequence[FinishedTrial], metric: str, *, arm: str, **setting: object) -> list[float]:
    return [
        row.measurements[metric]
        for row in rows
        if row.arm == arm and all(row.setting[name] == value for name, value in setting.items())
    ]


def _by_cell(rows: Sequence[FinishedTrial], arm: str, metric: str) -> dict[tuple[str, int], float]:
    return {(str(row.setting["layer"]), row.seed): row.measurements[metric] for row in rows if row.arm == arm}


def _mean_and_error(cells: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    errors = [float(np.std(cell, ddof=1) / np.sqrt(len(cell))) if len(cell) > 1 else 0.0 for cell in cells]
    return [float(np.mean(cell)) for cell in cells], errors
