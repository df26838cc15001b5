"""The verbs `assay cond-dp fit`, `condition`, `account` and `predict`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.errors import InputError
from assay.methods.cond_dp.options import parse_levels, parse_names, parse_range, parse_ranges, parse_widths

if TYPE_CHECKING:
    from assay.methods.cond_dp.conditioner import PublicConditioner
    from assay.methods.cond_dp.tables import Encoding

Quiet = Annotated[bool, Parameter(negative=())]
Out = Annotated[Path, Parameter(name=["--out", "-o"])]
Levels = Annotated[list[str] | None, Parameter(negative=())]
# Comma-separated values, of which the first may be negative.
Values = Annotated[str, Parameter(allow_leading_hyphen=True)]


def fit(
    data: Path,
    *,
    target: str,
    public: str,
    epsilon: float,
    y_range: Values,
    out: Out = Path("model"),
    delta: float = 1e-6,
    adjacency: Literal["replace_label", "semi_sensitive", "add_remove"] = "replace_label",
    private: str | None = None,
    categorical: str | None = None,
    levels: Levels = None,
    model: Literal["linear", "mlp", "fm", "label-ssp"] = "linear",
    conditioner: Path | None = None,
    power: float = 1.0,
    gamma: float = 3e-3,
    epochs: int = 64,
    lr: float | None = None,
    clip: float | None = None,
    batch: int | None = None,
    hidden: str = "64,32",
    factors: int = 8,
    switch_epoch: int | None = None,
    tuning_budget: float | None = None,
    seed: int | None = None,
    show_clipped: Annotated[bool, Parameter(negative=())] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a private regression of a column on public features, and save it with its privacy statement.

    Parameters
    ----------
    data
        CSV or Parquet.
    target
        The column of labels, which are private.
    public
        The columns of public features, separated by commas. Text columns become zeros and ones.
    epsilon
        The privacy budget.
    y_range
        The smallest and largest possible label, known beforehand: 0,10. Labels are clipped to it.
    out
        The folder for the model. A model that is there already is replaced.
    delta
        The probability with which the guarantee may fail.
    adjacency
        What may change unnoticed: one label; one label and the private features of its row; a whole row.
    private
        Private features with their declared ranges, for semi_sensitive: age:18:90,income:0:100000.
    categorical
        Columns of numbers that are categories, separated by commas.
    levels
        The levels of a category, where they are not to be read from the data: colour=red,green,blue.
    model
        A linear model, a multilayer perceptron, a factorisation machine, or a linear model from one noisy
        release of X'y, which is often the best where the budget is large (replace_label only).
    conditioner
        One that `assay cond-dp condition` wrote from other, public rows; needed for add_remove.
    power
        From 0, no conditioning, to 1.
    gamma
        Damping of directions with little spread.
    epochs
        Passes over the rows.
    lr
        Learning rate, for labels mapped to [-1, 1].
    clip
        Norm to which a row's gradient is clipped.
    batch
        Expected size of sampled batches; all rows in every step by default.
    hidden
        Widths of the layers of mlp, separated by commas.
    factors
        Factors of fm.
    switch_epoch
        After so many epochs, go on without the conditioner; for mlp and fm.
    tuning_budget
        A share of the budget, e.g. 0.2, for choosing learning rate and clipping norm with the private data.
        Without it they are not tuned.
    seed
        For repeatable noise. Whoever knows the seed can undo the privacy.
    show_clipped
        Print how many labels were outside the range. This number is not private.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.cond_dp.model_file import save_model
    from assay.methods.cond_dp.tables import numbers, read_table
    from assay.methods.cond_dp.validation import LeakageError

    console = Console(quiet=quiet, highlight=False)
    publics, ranges = parse_names(public), parse_ranges(private)
    if target in publics or target in ranges:
        raise LeakageError(f"{target} is the target: it cannot be a feature")
    if both := sorted(set(publics) & set(ranges)):
        raise LeakageError(f"{', '.join(both)} cannot be public and private")
    if ranges and adjacency != "semi_sensitive":
        raise InputError(f"--private is for --adjacency semi_sensitive, not {adjacency}")
    if out.exists() and not (out / "privacy.json").is_file():
        # Before the budget is spent.
        raise InputError(f"{out} exists and is not a saved model: pass another folder with --out")
    loaded = _loaded_conditioner(conditioner)
    table = read_table(data, [*publics, *ranges, target])
    encoding = _encoding(loaded, table, publics, ranges, categorical, levels, adjacency, data)
    X, y = encoding.encode(table, data), numbers(table[target], data)  # pyright: ignore[reportArgumentType]
    estimator = _estimator(
        model,
        {"hidden": parse_widths(hidden), "factors": factors, "switch_epoch": switch_epoch},
        {
            "epsilon": epsilon,
            "delta": delta,
            "y_range": parse_range(y_range),
            "adjacency": adjacency,
            "private_columns": ranges or None,
            "epochs": epochs,
            "batch": "full" if batch is None else batch,
            "random_state": seed,
            "conditioner": _new_conditioner(power, gamma) if loaded is None else loaded,
        }
        | {name: value for name, value in (("lr", lr), ("clip", clip)) if value is not None},
    )
    with console.status("Fitting ..."), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fitted = _fitted(estimator, X, y, tuning_budget)
    if loaded is not None:
        _name_source(fitted, loaded)
    save_model(fitted, out, encoding)
    console.print(f"{len(X)} rows, {X.shape[1]} features, {fitted.privacy_.steps} steps")
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(f"Note: {text}", soft_wrap=True)
    console.print(fitted.privacy_.statement, soft_wrap=True)
    for other, cost in fitted.privacy_.epsilon.items():
        if other != adjacency:
            console.print(f"For comparison, {other}: epsilon {cost:.4g} at delta {delta:g}")
    if show_clipped:
        console.print(
            f"NOT PRIVATE, do not publish: {fitted.n_labels_clipped_} labels were outside {y_range}",
            soft_wrap=True,
        )
    console.print(
        f"Saved to {out}; next: assay cond-dp predict {out} DATA -o predictions.csv", soft_wrap=True
    )


def condition(
    data: Path,
    *,
    out: Out,
    public: str,
    categorical: str | None = None,
    levels: Levels = None,
    power: float = 1.0,
    gamma: float = 3e-3,
    quiet: Quiet = False,
) -> None:
    """Compute a conditioner from public rows, in passes over a file that need not fit into memory.

    Parameters
    ----------
    data
        CSV or Parquet with rows that are public. For add_remove they must be other rows than the private
        ones.
    out
        The .npz file to write: the matrix C, its parts, and how columns become numbers.
    public
        The columns, separated by commas.
    categorical
        Columns of numbers that are categories, separated by commas.
    levels
        The levels of a category, where they are not to be read from the data: colour=red,green,blue.
    power
        From 0, no conditioning, to 1.
    gamma
        Damping of directions with little spread.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.cond_dp.tables import file_hash, learn_encoding, read_chunks

    if out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, not {out.suffix or 'nothing'}: {out}")
    console = Console(quiet=quiet, highlight=False)
    names = parse_names(public)
    with console.status("Reading ..."), warnings.catch_warnings():
        # They are printed below.
        warnings.simplefilter("ignore", UserWarning)
        encoding = learn_encoding(
            read_chunks(data, names),
            names,
            categories=parse_names(categorical),
            declared=parse_levels(levels),
            path=data,
        )
        made = _new_conditioner(power, gamma)
        made.fit_chunks(encoding.encode(chunk, data) for chunk in read_chunks(data, names))
    made.save(out, {"source": data.name, "sha256": file_hash(data), "encoding": encoding.to_json()})
    spectrum = made.spectrum_[: made.rank_]
    console.print(
        f"{made.n_rows_} rows, {made.n_features_in_} features; singular values from {spectrum[0]:.3g} to "
        f"{spectrum[-1]:.3g}, effective rank {made.effective_rank_:.1f}",
        soft_wrap=True,
    )
    for text in made.notes_:
        console.print(f"Note: {text}", soft_wrap=True)
    console.print(
        f"Whatever the labels are, conditioning gains at most a factor {spectrum[0] / spectrum[-1]:.3g} in "
        "the bound on "
        "the excess risk, and nothing if they follow the largest direction",
        soft_wrap=True,
    )
    console.print(f"Saved to {out}; next: assay cond-dp fit DATA --conditioner {out} ...", soft_wrap=True)


def account(
    model: Path | None = None,
    *,
    steps: int | None = None,
    delta: float = 1e-6,
    sigma: float | None = None,
    epsilon: float | None = None,
    sample_rate: float = 1.0,
    quiet: Quiet = False,
) -> None:
    """What training costs for each neighbour relation, the noise for a budget, or a saved model's statement.

    Parameters
    ----------
    model
        A folder that `assay cond-dp fit` wrote: check it and print its statement.
    steps
        Steps of the optimiser.
    delta
        The probability with which the guarantee may fail.
    sigma
        The noise multiplier, in units of the clipping norm: print what it costs.
    epsilon
        A budget: print the noise multiplier that it needs.
    sample_rate
        The probability of a row to be in a step's batch (Poisson sampling); 1 for all rows.
    quiet
        Print nothing; the exit code tells whether a saved model's files belong together.
    """
    from rich.console import Console
    from rich.table import Table

    from assay.methods.cond_dp.accounting import (
        SENSITIVITY,
        WHAT_CHANGES,
        NoisySteps,
        calibrate,
        epsilon_spent,
    )
    from assay.methods.cond_dp.accounting import check_sampling as check

    console = Console(quiet=quiet, highlight=False)
    if model is not None:
        from assay.methods.cond_dp.model_file import read_privacy

        if sigma is not None or epsilon is not None or steps is not None:
            raise InputError("pass either a saved model, or --steps with --sigma or --epsilon")
        console.print(read_privacy(model).statement, soft_wrap=True)
        return
    if steps is None or (sigma is None) == (epsilon is None):
        raise InputError(
            "pass --steps with --sigma (for its cost) or --epsilon (for the noise that it needs)"
        )
    check("poisson", sample_rate)
    sampling: Any = "full" if sample_rate == 1 else "poisson"
    table = Table("adjacency", "what changes", "noise multiplier", f"epsilon at delta {delta:g}")
    for adjacency in SENSITIVITY:
        noise = sigma
        if noise is None:
            noise = calibrate(
                float(epsilon or 0),
                delta,
                steps,
                adjacency=adjacency,
                sampling=sampling,
                sample_rate=sample_rate,
            )
        cost = epsilon_spent([NoisySteps(noise, sample_rate, steps)], delta, adjacency)
        table.add_row(adjacency, WHAT_CHANGES[adjacency].lower(), f"{noise:.4f}", f"{cost:.4f}")
    console.print(table)


def predict(model: Path, data: Path, *, out: Out, quiet: Quiet = False) -> None:
    """Predict with a saved model.

    Parameters
    ----------
    model
        The folder that `assay cond-dp fit` wrote. Its weights must be those of its privacy statement.
    data
        CSV or Parquet with the features among its columns.
    out
        CSV or Parquet with a column `prediction`.
    quiet
        Print nothing.
    """
    import pandas as pd
    from rich.console import Console

    from assay.methods.cond_dp.model_file import load_model
    from assay.methods.cond_dp.tables import read_table, write_table

    if out.suffix not in (".csv", ".parquet", ".pq"):
        raise InputError(f"--out must end in .csv or .parquet, not {out.suffix or 'nothing'}: {out}")
    console = Console(quiet=quiet, highlight=False)
    fitted, encoding = load_model(model)
    if encoding is None:
        raise InputError(
            f"{model} was not written by `assay cond-dp fit`: use load_model and its predict in Python"
        )
    X = encoding.encode(read_table(data, encoding.columns), data)
    write_table(out, pd.DataFrame({"prediction": fitted.predict(X)}))
    console.print(f"{len(X)} predictions in {out}", soft_wrap=True)


def _loaded_conditioner(path: Path | None) -> PublicConditioner | None:
    if path is None:
        return None
    from assay.methods.cond_dp.conditioner import PublicConditioner

    loaded = PublicConditioner.load(path)
    if "encoding" not in loaded.metadata_:
        raise InputError(
            f"{path} does not say how columns become numbers: write it with `assay cond-dp condition`"
        )
    return loaded


def _new_conditioner(power: float, gamma: float) -> PublicConditioner:
    from assay.methods.cond_dp.conditioner import PublicConditioner

    return PublicConditioner(power=power, gamma=gamma, standardize=True)


def _encoding(
    loaded: PublicConditioner | None,
    table: Any,
    publics: list[str],
    ranges: dict[str, tuple[float, float]],
    categorical: str | None,
    levels: list[str] | None,
    adjacency: str,
    path: Path,
) -> Encoding:
    """How the table's columns become features, public ones first, decided from public knowledge only."""
    from assay.methods.cond_dp.tables import Encoding, learn_encoding
    from assay.methods.cond_dp.validation import LeakageError

    if loaded is not None:
        if categorical or levels:
            raise InputError("--categorical and --levels are in the conditioner's file already")
        known = Encoding.from_json(loaded.metadata_["encoding"])
        if leaked := [name for name in known.columns if name in ranges]:
            raise LeakageError(
                f"the conditioner was computed from {', '.join(leaked)}, which is private here"
            )
        if set(known.columns) != set(publics):
            raise InputError(
                f"the conditioner is for {', '.join(known.columns)}, but --public names {', '.join(publics)}"
            )
    elif adjacency == "add_remove":
        raise LeakageError(
            "adjacency add_remove protects whole rows: compute a conditioner from other, public rows with "
            "`assay "
            "cond-dp condition`, and pass it with --conditioner"
        )
    else:
        known = learn_encoding(
            [table], publics, categories=parse_names(categorical), declared=parse_levels(levels), path=path
        )
    return Encoding((*known.columns, *ranges), known.levels)


def _estimator(kind: str, network: dict[str, Any], common: dict[str, Any]) -> Any:
    if kind == "linear":
        if network["switch_epoch"] is not None:
            raise InputError(
                "--switch-epoch is for --model mlp and fm: a linear model has no later phase to switch for"
            )
        from assay.methods.cond_dp.regressors import CondDPRegressor

        return CondDPRegressor(**common)
    if kind == "label-ssp":
        return _one_shot(network, common)
    from assay.methods.cond_dp.networks import CondDPNetworkRegressor

    return CondDPNetworkRegressor(model=kind, **network, **common)  # pyright: ignore[reportArgumentType]


def _one_shot(network: dict[str, Any], common: dict[str, Any]) -> Any:
    from assay.methods.cond_dp.baselines import LabelSSPRegressor

    if common["adjacency"] != "replace_label":
        raise InputError(f"--model label-ssp is for --adjacency replace_label, not {common['adjacency']}")
    if network["switch_epoch"] is not None or common["batch"] != "full" or {"lr", "clip"} & set(common):
        raise InputError(
            "--model label-ssp takes no steps: leave out --lr, --clip, --batch and --switch-epoch"
        )
    if hasattr(common["conditioner"], "gains_"):
        raise InputError("--model label-ssp computes its conditioner from the rows: leave out --conditioner")
    kept = ("epsilon", "delta", "y_range", "conditioner", "random_state")
    return LabelSSPRegressor(**{name: common[name] for name in kept})


def _fitted(estimator: Any, X: Any, y: Any, tuning_budget: float | None) -> Any:
    if tuning_budget is None:
        return estimator.fit(X, y)
    from assay.methods.cond_dp.regressors import GradientRegressor
    from assay.methods.cond_dp.tuning import fit_tuned

    if not isinstance(estimator, GradientRegressor):
        raise InputError("--model label-ssp has no learning rate to tune: leave out --tuning-budget")
    return fit_tuned(estimator, X, y, share=tuning_budget)[0]


def _name_source(fitted: Any, loaded: PublicConditioner) -> None:
    """Say in the report where the conditioner came from."""
    from dataclasses import replace

    facts = loaded.metadata_
    note = f"The conditioner was computed from {facts['source']}, sha256 {facts['sha256']}, declared public."
    fitted.privacy_ = replace(fitted.privacy_, notes=(note, *fitted.privacy_.notes))
