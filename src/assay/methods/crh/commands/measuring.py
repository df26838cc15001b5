"""`assay crh map` and `assay crh predict`: the sectors of prompts, and what is predictable about them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.crh.commands.parts import Flag, Folder, Position, load_model, read_run
from assay.methods.crh.printing import describe_report, describe_strength, progress


def map_sectors(
    *,
    cylinder: Folder,
    index: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    frame: Literal["own", "fitted"] = "own",
    position: Position = "output",
    sectors: int = 8,
    strengths: int = 25,
    s_max: float = 3.0,
    tilt: float = 60.0,
    controls: int = 2,
    model: str | None = None,
    seed: int = 0,
    device: str | None = None,
    quiet: Flag = False,
) -> None:
    """Map the sectors around the axis for some prompts: numbers, and a polar figure of each.

    Maps that are there already are not computed again, so an interrupted command can be repeated.

    Parameters
    ----------
    cylinder
        The folder that `assay crh fit` saved; maps go to its sub-folder `maps`.
    index
        Pairs, counted from 0; by default the first that the axis has not seen.
    frame
        own: sectors count from the pair's own normal, which needs its response with the concept. fitted: they
        count in the fitted plane, as for a new prompt.
    position
        Which tokens are steered; with output, what comes before is computed once for all sectors.
    sectors
        How many.
    strengths
        How many, up to --s-max.
    s_max
        The largest strength, in mean differences.
    tilt
        Degrees between the vectors and the axis.
    controls
        Random planes for comparison.
    model
        Another place of the same model.
    seed
        Of the random planes.
    device
        Where the model runs.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.crh.calibration import differences_of, margin_of
    from assay.methods.crh.figures import draw_sector_map, save_png
    from assay.methods.crh.sectors import sweep_sectors

    console = Console(quiet=quiet, highlight=False)
    fitted, rows = read_run(cylinder)
    chosen = index or [fitted.facts["calibration"][0]]
    for i in chosen:
        if not 0 <= i < len(rows):
            raise InputError(f"there is no pair {i}; there are pairs 0 to {len(rows) - 1}")
    if strengths < 1 or not 0 < s_max < math.inf:
        raise InputError(f"--strengths {strengths} must be at least 1 and --s-max {s_max} positive")
    loaded, tokenizer = load_model(console, fitted, model, device)
    margin = margin_of(loaded, tokenizer, rows, fitted, position=position)
    differences = None
    if frame == "own":
        differences = differences_of(loaded, tokenizer, rows.subset(chosen), fitted).differences(fitted.layer)
    lengths = [s_max * fitted.axis_norm * (k + 1) / strengths for k in range(strengths)]
    with progress(console, quiet) as step:
        maps = sweep_sectors(
            margin,
            fitted,
            chosen,
            cylinder / "maps",
            key={name: fitted.facts[name] for name in ("model_fingerprint", "pairs", "m_tokens")}
            | {"position": position},
            differences=None if differences is None else dict(zip(chosen, differences, strict=True)),
            on_sample=lambda done, total: step("Mapping sectors", done, total),
            n_phi=sectors,
            strengths=lengths,
            tilt_deg=tilt,
            n_controls=controls,
            seed=seed,
        )
    for i, found in maps.items():
        figure = draw_sector_map(found, unit=fitted.axis_norm, title=rows[i].question)
        path = cylinder / "maps" / f"sample-{i}-{frame}.png"
        save_png(figure, path)
        effects = found.effects()
        console.print(
            f"pair {i}: {effects.facilitating:.0%} of sectors facilitate, {effects.suppressing:.0%} do not; "
            f"range {effects.range:.2f} nats per token"
            + (f" ({effects.control_range:.2f} in random planes)" if controls else ""),
            soft_wrap=True,
        )
        console.print(str(path), soft_wrap=True)


def predict(
    *,
    cylinder: Folder,
    others: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    permutations: int = 999,
    coverage: float = 0.9,
    model: str | None = None,
    seed: int = 0,
    device: str | None = None,
    quiet: Flag = False,
) -> None:
    """Say what can be predicted for a new prompt: the strength, the plane, the sector.

    Parameters
    ----------
    cylinder
        The folder that `assay crh fit` saved; `predictability.json` and `captured-energy.png` go there.
    others
        Folders of other concepts' cylinders at the same layer, whose planes serve as a control.
    permutations
        Of the permutation tests.
    coverage
        Of the interval for the strength.
    model
        Another place of the same model.
    seed
        Of the permutations.
    device
        Where the model runs.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.files import as_json, write_json
    from assay.methods.crh.artifact import load_cylinder
    from assay.methods.crh.calibration import differences_of, margin_of
    from assay.methods.crh.figures import draw_energy, save_png
    from assay.methods.crh.verdict import predictability

    console = Console(quiet=quiet, highlight=False)
    fitted, rows = read_run(cylinder)
    if permutations < 19:
        raise InputError(f"--permutations must be at least 19, got {permutations}")
    recommendation = fitted.recommend_strength(coverage)
    planes = {}
    for folder in others or []:
        other = load_cylinder(folder)
        if (other.layer, other.width) != (fitted.layer, fitted.width):
            raise InputError(
                f"{folder} is of layer {other.layer}, width {other.width}: no plane to compare with"
            )
        planes[str(folder)] = other.basis
    loaded, tokenizer = load_model(console, fitted, model, device)
    margin = margin_of(loaded, tokenizer, rows, fitted)
    differences = differences_of(loaded, tokenizer, rows, fitted).differences(fitted.layer)
    with progress(console, quiet) as step:
        report = predictability(
            fitted,
            margin,
            differences,
            fitted.facts["train"],
            fitted.facts["calibration"],
            others=planes,
            n_perm=permutations,
            seed=seed,
            on_sample=lambda done, total: step("Taking gradients", done, total),
        )
    write_json(
        cylinder / "predictability.json",
        report.as_dict() | {"strength": as_json(vars(recommendation))},
    )
    describe_strength(console, recommendation, fitted)
    describe_report(console, report)
    if report.planes:
        save_png(draw_energy(report.planes, fitted.width), cylinder / "captured-energy.png")
        console.print(str(cylinder / "captured-energy.png"), soft_wrap=True)
