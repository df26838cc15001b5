"""The figures of the study of the panorama watermark."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from assay.study import FinishedTrial, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "closed_form": "third order (ours)",
    "learned": "learned engine",
    "fixed-directions": "fixed directions",
    "power-spectrum": "power spectrum",
    "planar": "planar spread spectrum",
    "dwt-dct": "DWT-DCT",
    "dwt-dct-svd": "DWT-DCT-SVD",
    "rivagan": "RivaGAN",
}
# Arms of equal fidelity, with a colour in all figures.
COLOURS = {"closed_form": "C0", "planar": "C1", "power-spectrum": "C2", "fixed-directions": "C3"}
ATTACKS = {
    "none": "none",
    "rotation": "rotation",
    "rotation-bicubic": "rotation, bicubic",
    "yaw90": "heading +90°",
    "rotation-jpeg50": "rotation, JPEG 50",
    "jpeg80": "JPEG 80",
    "jpeg50": "JPEG 50",
    "jpeg30": "JPEG 30",
    "half-size": "half size",
    "noise10": "noise (10 levels)",
    "gamma0.7": "gamma 0.7",
    "mirror": "mirror image",
    "nadir": "black cap (18°)",
    "chain": "JPEG 80, rotation,\nhalf size, JPEG 70",
}
MAGNIFIED = 20


def panels(finished: Sequence[FinishedTrial]) -> Mapping[str, Panel]:
    """Every figure that the trials allow."""
    parts: dict[str, list[FinishedTrial]] = {}
    for row in finished:
        parts.setdefault(str(row.setting["part"]), []).append(row)
    drawn: dict[str, Panel | None] = {}
    if attack := parts.get("attack"):
        shown = next((row for row in attack if row.arm == "closed_form"), None)
        if shown is not None:
            name, seed = _pictured(attack, shown)
            drawn["images"] = _images(name, seed)
            drawn["spectrum"] = _spectrum(name, seed)
        drawn["attacks"] = _attacks(attack)
        drawn["detection"] = _detection(attack, parts.get("keys", []))
    if capacity := parts.get("capacity"):
        drawn["capacity"] = _capacity(capacity, attack or [])
    if alignment := parts.get("alignment"):
        drawn["alignment"] = _alignment(alignment)
    return {name: panel for name, panel in drawn.items() if panel is not None}


def _pictured(rows: Sequence[FinishedTrial], first: FinishedTrial) -> tuple[str, int]:
    """The panorama of the pictures: a town where it is among the trials."""
    names = {str(row.setting["panorama"]) for row in rows if row.arm == "closed_form"}
    return ("venice" if "venice" in names else str(first.setting["panorama"])), 0


def _images(name: str, seed: int) -> Panel:
    from assay.methods.panorama_watermark import experiments

    original = experiments.panorama(name)
    marked, facts = experiments.marked("closed_form", name, seed)
    turned = experiments.attacked(marked, "rotation", name, seed)
    difference = 0.5 + MAGNIFIED * (marked.astype(float).mean(axis=2) - original.mean(axis=2)) / 255
    figure, axes = _subplots(2, 2, figsize=(10, 5.4))
    for axis, picture, title in zip(
        axes.flat,
        (original, marked, np.clip(difference, 0, 1), turned),
        (
            "original",
            "marked",
            f"difference, {MAGNIFIED} times",
            "marked and turned: the payload is read here",
        ),
        strict=True,
    ):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
        axis.set_axis_off()
    return Panel(
        figure,
        f"A panorama ({name}, 512 x 256 pixels, Poly Haven, CC0) with 127 channel bits at a WS-PSNR of "
        f"{facts['ws_psnr']:.1f} dB. The difference is gray where nothing changed.",
    )


def _spectrum(name: str, seed: int) -> Panel:
    from assay.methods.panorama_watermark import experiments
    from assay.methods.panorama_watermark.harmonics import power_spectrum
    from assay.methods.panorama_watermark.luma import luma_coefficients, pixel_scale
    from assay.methods.panorama_watermark.schedule import band_for_height

    original = experiments.panorama(name)
    marked, _ = experiments.marked("closed_form", name, seed)
    top = 140
    scale, band = pixel_scale(original), band_for_height(len(original))
    before = luma_coefficients(scale.luma(original), top)
    change = luma_coefficients(scale.luma(marked), top) - before
    degrees = np.arange(1, top + 1)
    figure, axes = _subplots(1, 1, figsize=(8, 4.2))
    axis = axes[0, 0]
    for values, label, colour in ((before, "original", "C1"), (change, "the mark", "C0")):
        power = power_spectrum(values, top)[1:] / (2 * degrees + 1)
        axis.plot(degrees, power, label=label, color=colour)
    for (low, high), label, colour in (
        (band.reference, "reference band", "C2"),
        (band.payload, "payload band", "C3"),
    ):
        axis.axvspan(low - 0.5, high + 0.5, alpha=0.15, color=colour, label=label, linewidth=0)
    axis.set(yscale="log", xlabel="degree", ylabel="mean power of a coefficient (levels²)", xlim=(1, top))
    axis.legend()
    return Panel(
        figure,
        "Where the mark is: directions are made from the reference band, which stays as it is, and the "
        "payload "
        "band is changed along them. The floor outside is the rounding to whole levels.",
    )


def _attacks(rows: Sequence[FinishedTrial]) -> Panel:
    arms = [arm for arm in NAMES if any(row.arm == arm for row in rows)]
    names = [attack for attack in ATTACKS if any(row.setting["attack"] == attack for row in rows)]
    table = np.array(
        [[_mean(_values(rows, "bit_accuracy", arm=arm, attack=attack)) for arm in arms] for attack in names]
    )
    fidelity = [_mean(_values(rows, "ws_psnr", arm=arm, attack="none")) for arm in arms]
    bits = [_mean(_values(rows, "bits", arm=arm)) for arm in arms]
    figure, axes = _subplots(1, 1, figsize=(10, 1.6 + 0.42 * len(names)))
    axis = axes[0, 0]
    axis.imshow(table, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        if math.isfinite(value):
            colour = "black" if value > 0.8 else "white"
            axis.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour)
    labels = [
        f"{textwrap.fill(NAMES[arm], 14)}\n{count:.0f} bits, {decibels:.1f} dB"
        for arm, count, decibels in zip(arms, bits, fidelity, strict=True)
    ]
    axis.set_xticks(range(len(arms)), labels, fontsize="small")
    axis.set_yticks(range(len(names)), [ATTACKS[attack] for attack in names])
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.grid(visible=False)
    return Panel(
        figure,
        "Bit accuracy by attack and mark, before error correction; 0.5 is chance. All but the three marks of "
        "invisible-watermark (DWT-DCT, DWT-DCT-SVD, RivaGAN) spend the same WS-PSNR on an image; the "
        "decibels "
        "are means. The learned engine is shown on panoramas that it was not trained on. Empty: not run.",
    )


def _detection(rows: Sequence[FinishedTrial], keys: Sequence[FinishedTrial]) -> Panel | None:
    attacks = [
        attack
        for attack in ("none", "rotation", "rotation-jpeg50", "jpeg30", "chain")
        if _values(rows, "log10_p", arm="closed_form", attack=attack)
    ]
    if not attacks:
        return None
    figure, axes = _subplots(1, 2, figsize=(11, 4.4))
    levels = np.linspace(-40, 0, 401)
    lines = [("closed_form", attack, ATTACKS[attack].replace("\n", " ")) for attack in attacks]
    lines.append(("planar", "rotation", "planar mark, rotation"))
    for index, (arm, attack, label) in enumerate(lines):
        values = np.array(_values(rows, "log10_p", arm=arm, attack=attack))
        if values.size:
            share = [float(np.mean(values <= level)) for level in levels]
            axes[0, 0].plot(levels, share, label=label, color=f"C{index % 6}")
    axes[0, 0].axvline(-6, color="gray", linestyle="--", linewidth=0.8)
    axes[0, 0].set(
        xlabel="false-positive probability, exact (log10)", ylabel="images found", ylim=(-0.03, 1.03)
    )
    axes[0, 0].legend(fontsize="small")
    _false_positives(axes[0, 1], keys)
    return Panel(
        figure,
        "Left: the test for a known payload, share of images found against the false-positive probability "
        "that is "
        "allowed; detection uses 10^-6 (dashed). Right: channel bits that match with keys that have "
        "nothing to do "
        "with the image, beside the binomial law that the p-value rests on.",
    )


def _false_positives(axis: Axes, rows: Sequence[FinishedTrial]) -> None:
    bits = 127
    for arm, label, colour in (("original", "unmarked", "C0"), ("other-key", "marked, wrong key", "C1")):
        counts = np.zeros(bits + 1)
        for row in (row for row in rows if row.arm == arm):
            for name, value in row.measurements.items():
                if name.startswith("matches:"):
                    counts[int(name.split(":")[1])] += value
        if counts.sum():
            total = int(counts.sum())
            axis.plot(
                np.arange(bits + 1),
                np.where(counts > 0, counts / total, np.nan),
                "o",
                markersize=4,
                color=colour,
                label=f"{label} ({total} keys)",
            )
    axis.plot(stats.binom.pmf(np.arange(bits + 1), bits, 0.5), color="gray", label="127 fair coins")
    axis.axvline(91, color="gray", linestyle="--", linewidth=0.8)
    axis.set(
        xlabel="bits that match, of 127",
        ylabel="share of keys",
        xlim=(35, 100),
        yscale="log",
        ylim=(1e-5, 0.2),
    )
    axis.legend(fontsize="small", loc="lower left")


def _capacity(rows: Sequence[FinishedTrial], attack: Sequence[FinishedTrial]) -> Panel:
    figure, axes = _subplots(1, 2, figsize=(11, 4.2))
    sizes = sorted({int(row.setting["bits"]) for row in rows})
    for name in sorted({str(row.setting["panorama"]) for row in rows}):
        own = [_values(rows, "ws_psnr", arm="closed_form", panorama=name, bits=size) for size in sizes]
        axes[0, 0].plot(sizes, [_mean(one) for one in own], color="C0", alpha=0.25, linewidth=1)
    means = [_mean(_values(rows, "ws_psnr", arm="closed_form", bits=size)) for size in sizes]
    axes[0, 0].plot(sizes, means, "o-", color="C0", linewidth=2)
    axes[0, 0].set(xlabel="channel bits", ylabel="WS-PSNR (dB) at margin 0.3", xscale="log")
    axes[0, 0].set_xticks(sizes, [str(size) for size in sizes])
    axes[0, 0].minorticks_off()
    arms = [arm for arm in COLOURS if _values(attack, "information", arm=arm, attack="rotation")]
    for place, arm in enumerate(arms):
        values = _values(attack, "information", arm=arm, attack="rotation")
        axes[0, 1].barh(place, _mean(values), 0.6, color=COLOURS[arm])
        axes[0, 1].text(_mean(values) + 1, place, f"{_mean(values):.1f}", va="center")
    axes[0, 1].set_yticks(range(len(arms)), [NAMES[arm] for arm in arms])
    axes[0, 1].invert_yaxis()
    axes[0, 1].set(xlabel="bits carried through a random rotation", xlim=(0, 145))
    return Panel(
        figure,
        "Left: what bits cost (a line per panorama, the mean in bold). Right: bits that get through a "
        "rotation at "
        "equal WS-PSNR, n (1 - h(error rate)); the power spectrum of this band has 24 in all.",
    )


def _alignment(rows: Sequence[FinishedTrial]) -> Panel:
    from assay.methods.panorama_watermark.rotation_search import rotations_within

    figure, axes = _subplots(1, 1, figsize=(7.5, 4.2))
    angles = sorted({float(row.setting["angle"]) for row in rows})
    for arm in ("closed_form", "planar"):
        cells = [_values(rows, "bit_accuracy", arm=arm, angle=angle) for angle in angles]
        means = [_mean(cell) for cell in cells]
        ends = np.array([(min(cell, default=math.nan), max(cell, default=math.nan)) for cell in cells])
        axes[0, 0].plot(angles, means, "o-", color=COLOURS[arm], label=NAMES[arm])
        axes[0, 0].fill_between(angles, *ends.T, color=COLOURS[arm], alpha=0.15, linewidth=0)
    axes[0, 0].axhline(0.5, color="gray", linestyle="--", linewidth=0.8)
    axes[0, 0].set(
        xlabel="angle to the original's orientation (degrees)", ylabel="bit accuracy", ylim=(0.3, 1.03)
    )
    axes[0, 0].legend()
    return Panel(
        figure,
        "Turned and turned back, but for an angle about a random axis (mean and range over panoramas). A "
        "search "
        "that comes within half a degree of every rotation has to try at least "
        f"{rotations_within(0.5):.0e} of them.",
    )


def _subplots(rows: int, columns: int, **options: Any) -> tuple[Any, np.ndarray]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def _values(rows: Sequence[FinishedTrial], metric: str, *, arm: str, **setting: object) -> list[float]:
    return [
        row.measurements[metric]
        for row in rows
        if row.arm == arm and all(row.setting[name] == value for name, value in setting.items())
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
