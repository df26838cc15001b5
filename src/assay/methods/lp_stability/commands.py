"""The verbs `bound`, `certify` and `estimate` of `assay lp-stability`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError

Bound = Literal[
    "best",
    "optimised",
    "paper",
    "paper-lowp",
    "rio",
    "chebyshev",
    "von-bahr-esseen",
    "mcdiarmid",
    "subgaussian",
    "subexponential",
]
SWITCHES = ("fixed_design", "monotone_risk")


def bound(
    *,
    n: int,
    delta: float,
    moment: str | None = None,
    range_: Annotated[float | None, Parameter(name="--range")] = None,
    p: float | None = None,
    name: Annotated[Bound, Parameter(name="--bound")] = "best",
    sided: Literal[1, 2] = 1,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Print how far a statistic of n independent units may stray from its mean, by every bound.

    Parameters
    ----------
    n
        The number of independent units.
    delta
        The probability with which the bound may fail.
    moment
        Moments E H^p of the effect H of replacing one unit, for example "H:2=1,4=3" or "2=1,4=3".
    range_
        A bound of H that always holds.
    p
        Use this moment order only.
    name
        Print this bound only; best is the least of all.
    sided
        1 bounds the deviation upwards, 2 in both directions.
    as_json
        Print JSON.
    """
    from assay.methods.lp_stability.concentration import radius, radius_table
    from assay.methods.lp_stability.envelopes import DeclaredEnvelope

    moments = _moments(moment, "--moment") if moment else {}
    if not moments and range_ is None:
        raise InputError("nothing is known of the effect: pass --moment 2=...,4=... or --range")
    ceiling = float("inf") if range_ is None else range_
    envelope = DeclaredEnvelope(moments, bound=ceiling, subgaussian=ceiling, provenance="analytic")
    order: Any = "auto" if p is None else p
    if name == "best":
        found = radius_table(envelope, n, delta, p=order, sided=sided)
    else:
        found = {name: radius(envelope, n, delta, p=order, bound=name, sided=sided)}
    if as_json:
        _print_json(
            {
                key: {"radius": r.value, "bound": r.bound, "p": r.p, "reason": r.reason}
                for key, r in found.items()
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("bound", "radius", "p", "why not", title=f"P(f - Ef >= radius) <= {delta:g}, n = {n}")
    for key, r in found.items():
        label = f"best: {r.bound}" if key == "best" else key
        table.add_row(
            label, f"{r.value:.6g}", "" if r.p is None else f"{r.p:g}", r.reason.removeprefix(f"{label}: ")
        )
    Console().print(table)


def certify(
    model: Path,
    data: Path,
    *,
    target: str,
    loss: str = "absolute",
    delta: float = 0.05,
    assume: str | None = None,
    label_moment: str | None = None,
    label_law: str | None = None,
    reserve: float = 0.2,
    pairs: int = 200,
    seed: int = 0,
    out: Path = Path("certificate.json"),
    save_model: Path | None = None,
    quiet: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Bound the risk of a model on new rows, and write a certificate (or an estimate, which guarantees
    nothing).

    Of the model file only the kind of estimator and its parameters are used; it is fitted again to a part of
    the rows. The file is read as data: nothing in it is run. It may hold any scikit-learn regressor, or a
    BallRidge, written by joblib, pickle or skops; an estimator of another package needs the Python interface.

    Parameters
    ----------
    model
        The model file.
    data
        A CSV or Parquet file of numbers with one row per observation.
    target
        The column of the labels.
    loss
        absolute, squared, huber, huber:THRESHOLD, pinball or pinball:QUANTILE.
    delta
        The probability with which the bound may fail.
    assume
        Constants that hold for every sample, for example "x_bound=1,weight_bound=2". Also label_bound, kappa,
        strong_convexity, training_lipschitz, lipschitz, and fixed_design=1 or monotone_risk=1.
    label_moment
        Bounds of E|y|^p, for example "2=1.5,4=20".
    label_law
        The law of the labels, for example "t:df=5,scale=0.5" (a continuous law of scipy.stats).
    reserve
        The share of the rows that is held out.
    pairs
        Random swaps of rows, for an estimate.
    seed
        Of the split and of the swaps.
    out
        Where to write the JSON file. While an estimate is measured its partial results are kept beside it, so
        that an interrupted command goes on where it stopped.
    save_model
        Where to write, with joblib, the model that the statement speaks of.
    quiet
        Show no progress.
    as_json
        Print the content of the file.
    """
    from assay.cache import content_hash
    from assay.methods.lp_stability.assumptions import Assumptions
    from assay.methods.lp_stability.certificate import certify_with_model
    from assay.methods.lp_stability.moments import MomentWarning

    declared: dict[str, Any] = _constants(assume) if assume else {}
    if label_moment:
        declared["label_moment"] = _moments(label_moment, "--label-moment")
    if label_law:
        declared["label_law"] = label_law
    estimator, X, y = _inputs(model, data, target)
    files = {"model file": _sha256(model), "data file": _sha256(data)}
    # Named by what determines it, so that another command never meets a foreign partial result.
    key = content_hash({**files, "target": target, "loss": loss, "reserve": reserve, "seed": seed})
    partial = out.with_name(f".{out.stem}-{key}.partial.npz")
    with _progress(quiet) as progress, warnings.catch_warnings():
        # The statement's text holds them.
        warnings.simplefilter("ignore", MomentWarning)
        statement, fitted = certify_with_model(
            estimator,
            X,
            y,
            loss=loss,
            delta=delta,
            assumptions=Assumptions(**declared),
            reserve=reserve,
            n_pairs=pairs,
            seed=seed,
            checkpoint=partial,
            progress=progress,
        )
    statement = replace(statement, inputs={**statement.inputs, **files})
    statement.save(out)
    partial.unlink(missing_ok=True)
    if save_model is not None:
        _dump(fitted, save_model)
    if as_json:
        print(out.read_text(encoding="utf-8"), end="")
        return
    print(statement.text())
    print(f"It speaks of the model fitted again to {statement.m} of the rows. Written to {out}")


def estimate(
    model: Path,
    data: Path,
    *,
    target: str,
    loss: str = "absolute",
    pairs: int = 200,
    scheme: Literal["replace", "loo"] = "replace",
    p: str = "2,3,4",
    shortcut: Literal["auto", "refit"] = "auto",
    reserve: float = 0.2,
    seed: int = 0,
    jobs: int | None = None,
    checkpoint: Path | None = None,
    quiet: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure how much a random swap of one training row changes a model's losses. An estimate, no guarantee.

    The model file is read as by `certify`: nothing in it is run.

    Parameters
    ----------
    model
        The model file.
    data
        A CSV or Parquet file of numbers with one row per observation.
    target
        The column of the labels.
    loss
        absolute, squared, huber, huber:THRESHOLD, pinball or pinball:QUANTILE.
    pairs
        Swaps to measure.
    scheme
        replace swaps a row for a fresh one; loo leaves one out.
    p
        The orders of the norms, separated by commas.
    shortcut
        auto uses exact update formulas where they exist; refit always fits again.
    reserve
        The share of the rows that the fresh rows and the evaluation rows come from.
    seed
        Of the split and of the swaps.
    jobs
        Fits at once where there is no shortcut.
    checkpoint
        A file for partial results, from which an interrupted measurement goes on.
    quiet
        Show no progress.
    as_json
        Print JSON.
    """
    from assay.methods.lp_stability.estimators import StabilityEstimator

    estimator, X, y = _inputs(model, data, target)
    measured = StabilityEstimator(
        estimator,
        loss=loss,
        n_pairs=pairs,
        scheme=scheme,
        p=_orders(p),
        shortcut=shortcut,
        reserve=reserve,
        checkpoint=checkpoint,
        n_jobs=jobs,
        random_state=seed,
    )
    with _progress(quiet) as progress:
        measured.fit(X, y, progress=progress)
    if as_json:
        _print_json(
            {
                "kind": "estimate",
                "norms_of_largest_change": {f"{q:g}": value for q, value in measured.coef_.items()},
                "intervals_95": {f"{q:g}": list(ends) for q, ends in measured.coef_ci_.items()},
                "norms_of_risk_change": {f"{q:g}": value for q, value in measured.risk_coef_.items()},
                "norms_of_gap_change": {f"{q:g}": value for q, value in measured.gap_coef_.items()},
                "bias": measured.bias_,
                "swaps": len(measured.deltas_),
                "failed": measured.n_failed_,
                "method": measured.method_used_,
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("p", "largest change", "95% interval", "risk change", "gap change", title="L_p norms")
    for q, value in measured.coef_.items():
        low, high = measured.coef_ci_[q]
        risk, gap = measured.risk_coef_[q], measured.gap_coef_[q]
        table.add_row(f"{q:g}", f"{value:.4g}", f"{low:.4g} to {high:.4g}", f"{risk:.4g}", f"{gap:.4g}")
    Console().print(table)
    print(
        f"{len(measured.deltas_)} swaps ({measured.method_used_}), {measured.n_failed_} failed. "
        "This is an estimate, not a guarantee."
    )


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of the swaps, on stderr; it shows once the first ones are measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("swaps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("swaps", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def _inputs(model: Path, data: Path, target: str) -> tuple[Any, Any, Any]:
    from assay.methods.lp_stability.model_recipe import read_recipe
    from assay.methods.lp_stability.rows import check_finite
    from assay.methods.lp_stability.tables import read_table

    X, y, _ = read_table(data, target)
    check_finite(X, y)
    return read_recipe(model), X, y


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _dump(model: Any, path: Path) -> None:
    import joblib

    from assay.files import replacing

    with replacing(path) as temporary:
        joblib.dump(model, temporary)


def _moments(text: str, option: str) -> dict[float, float]:
    """Moments by order from a text like "H:2=1,4=3"."""
    from assay.methods.lp_stability.assumptions import named_numbers

    numbers = named_numbers(text.rpartition(":")[2], option)
    try:
        return {float(order): value for order, value in numbers.items()}
    except ValueError:
        raise InputError(f"{option} {text!r}: write order=moment pairs, for example 2=1,4=3") from None


def _constants(text: str) -> dict[str, Any]:
    """Assumptions from a text like "x_bound=1,weight_bound=2"."""
    from dataclasses import fields

    from assay.methods.lp_stability.assumptions import Assumptions, named_numbers

    numbers = named_numbers(text, "--assume")
    known = {f.name for f in fields(Assumptions)} - {"label_moment", "label_law", "row_law"}
    for name, value in numbers.items():
        if name not in known:
            raise InputError(f"--assume has no constant {name!r}; there are {', '.join(sorted(known))}")
        if name in SWITCHES and value not in (0, 1):
            raise InputError(f"--assume {name}={value:g}: write {name}=1 to declare it")
    return {name: bool(value) if name in SWITCHES else value for name, value in numbers.items()}


def _orders(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--p {text!r}: write orders separated by commas, for example 2,3,4") from None


def _print_json(value: Any) -> None:
    import json

    from assay.files import as_json

    print(json.dumps(as_json(value), indent=2))
