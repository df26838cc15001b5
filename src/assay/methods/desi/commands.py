"""The verbs `assay desi fit`, `predict` and `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.desi.regressor import DeSIRegressor

Quiet = Annotated[bool, Parameter(negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]


def fit(
    predictors_file: Annotated[Path, Parameter(name="PREDICTORS")],
    *,
    response: Path,
    space: Literal["wasserstein", "laplacian", "spd", "sphere", "composition", "euclidean"],
    out: Out,
    metric: str | None = None,
    samples: Annotated[bool, Parameter(negative=())] = False,
    predictors: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    mode: Literal["shared", "deep_shared", "per_sample"] = "shared",
    bandwidth: float | None = None,
    restarts: int = 4,
    seed: int = 0,
    compare: int | None = None,
    quiet: Quiet = False,
) -> None:
    """Fit DeSI to predictors and outcomes, and save the model.

    Parameters
    ----------
    predictors_file
        CSV with a header of predictor names, or NPZ with an array X.
    response
        The outcomes: NPZ with an array Y, or CSV with one row per outcome (a matrix row by row).
    space
        The metric space of the outcomes; wasserstein takes quantile functions on an even grid inside (0, 1).
    out
        The folder to save the model in.
    metric
        The distance, where the space has several: log-cholesky, affine-invariant, ... for spd; frobenius or
        power for laplacian.
    samples
        The response is a CSV of raw samples with the columns row (1, 2, ...) and value; for wasserstein.
    predictors
        The columns to use; all by default.
    mode
        shared: one direction, a free vector. deep_shared: one direction, from a network. per_sample: the
        authors' published algorithm, which gives every row a direction of its own.
    bandwidth
        A fixed bandwidth in units of the index; learnt by default.
    restarts
        Random starts beside the two that are computed from the data.
    seed
        The seed of everything random.
    compare
        Also cross-validate DeSI, global Fréchet regression and a Fréchet forest with so many folds, to see
        whether one index is enough.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.desi.files import read_outcomes, read_predictors
    from assay.methods.desi.regressor import DeSIRegressor
    from assay.methods.desi.spaces import space_from_spec

    console = Console(quiet=quiet, highlight=False)
    chosen = space_from_spec({"name": space} | ({"metric": metric} if metric else {}))
    X = read_predictors(predictors_file, predictors)
    if compare is not None and not 2 <= compare <= len(X) // 2:
        raise InputError(f"--compare must be from 2 to {len(X) // 2} folds for {len(X)} rows, got {compare}")
    Y = read_outcomes(response, chosen, samples)
    if space == "wasserstein" and Y.ndim == 2 and Y.shape[1] != chosen.spec()["grid_size"]:
        # The grid is the file's own.
        chosen = space_from_spec({"name": space, "grid_size": Y.shape[1]})
    model = DeSIRegressor(
        chosen,
        mode=mode,
        bandwidth="learn" if bandwidth is None else bandwidth,
        n_restarts=restarts,
        random_state=seed,
    )
    with console.status("Fitting ..."):
        model.fit(X, Y)
    model.save(out)
    console.print(f"{len(X)} rows, {X.shape[1]} predictors, {space} outcomes")
    console.print(f"bandwidth {model.bandwidth_:.3g}; Fréchet R² in sample {model.score(X, Y):.3f}")
    _print_direction(console, model)
    if compare is not None:
        _compare(console, model, X, Y, compare, quiet)
    console.print(f"Saved to {out}; next: assay desi explain {out}", soft_wrap=True)


def predict(
    model: Path,
    predictors_file: Annotated[Path, Parameter(name="PREDICTORS")],
    *,
    out: Out,
    quiet: Quiet = False,
) -> None:
    """Predict outcomes with a saved model.

    Parameters
    ----------
    model
        The folder that `assay desi fit` saved.
    predictors_file
        CSV with the predictors of the fit among its columns, or NPZ with an array X.
    out
        NPZ (arrays Y, index, extrapolated) or CSV (a row per outcome).
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.desi.files import read_predictors, write_predictions
    from assay.methods.desi.regressor import DeSIRegressor

    if out.suffix not in (".npz", ".csv"):
        raise InputError(f"--out must end in .npz or .csv, not {out.suffix or 'nothing'}: {out}")
    console = Console(quiet=quiet, highlight=False)
    fitted = DeSIRegressor.load(model)
    names = getattr(fitted, "feature_names_in_", None)
    X = read_predictors(predictors_file, None if names is None else list(names))
    predictions, extrapolated = fitted.predict(X, return_flag=True)
    write_predictions(out, predictions, index=fitted.predict_index(X), extrapolated=extrapolated)
    console.print(f"{len(X)} predictions in {out}", soft_wrap=True)
    if extrapolated.any():
        console.print(
            f"{int(extrapolated.sum())} rows have an index outside the training range: they are extrapolated",
            style="yellow",
        )


def explain(
    model: Path, *, bootstrap: int = 200, out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    level: float = 0.95, seed: int = 0, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Explain a saved model: the index direction with bootstrap intervals, and the outcomes along the index.

    Parameters
    ----------
    model
        The folder that `assay desi fit` saved.
    bootstrap
        Bootstrap samples; 0 for none.
    out
        A folder for direction.csv, direction.png and along-index.png.
    level
        The level of the intervals.
    seed
        The seed of the bootstrap.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.desi.regressor import DeSIRegressor

    console = Console(quiet=quiet, highlight=False)
    fitted = DeSIRegressor.load(model)
    if bootstrap:
        with console.status(f"Refitting to {bootstrap} bootstrap samples ..."):
            fitted.bootstrap_direction(bootstrap, level=level, seed=seed)
    _print_direction(console, fitted)
    if out is not None:
        from assay.methods.desi.explanation import write_explanation

        for path in write_explanation(fitted, out):
            console.print(str(path), soft_wrap=True)


def _print_direction(console: Console, model: DeSIRegressor) -> None:
    from rich.table import Table

    from assay.methods.desi.explanation import direction_rows

    spread = getattr(model, "direction_ci_", None)
    table = Table("predictor", "direction")
    if spread is not None:
        table.add_column(f"{spread.level:.0%} interval")
    for row in direction_rows(model):
        cells = [f"{row['direction']:+.3f}"]
        if spread is not None:
            cells.append(f"{row['low']:+.3f} to {row['high']:+.3f}")
        table.add_row(str(row["predictor"]), *cells)
    console.print(table)
    if spread is not None:
        console.print(f"cosine stability of the direction: {spread.cosine_stability:.3f}")


def _compare(console: Console, model: DeSIRegressor, X, Y, folds: int, quiet: bool) -> None:
    """Cross-validated Fréchet R² of DeSI and of two models without a single index."""
    from rich.progress import track
    from rich.table import Table
    from sklearn.base import clone
    from sklearn.model_selection import KFold

    from assay.methods.desi.baselines import FrechetForest, GlobalFrechet

    estimators = {
        "DeSI": clone(model),
        "global Fréchet regression": GlobalFrechet(model.space),
        "Fréchet forest": FrechetForest(model.space, random_state=0),
    }
    splits = list(KFold(folds, shuffle=True, random_state=0).split(X))
    jobs = [(name, split) for split in splits for name in estimators]
    scores: dict[str, list[float]] = {name: [] for name in estimators}
    for name, (train, test) in track(jobs, "Cross-validating", console=console, disable=quiet):
        fitted = clone(estimators[name]).fit(X.iloc[train], Y[train])
        scores[name].append(fitted.score(X.iloc[test], Y[test]))
    table = Table("model", f"Fréchet R², {folds} folds")
    for name, values in scores.items():
        table.add_row(name, f"{sum(values) / folds:.3f}")
    console.print(table)
