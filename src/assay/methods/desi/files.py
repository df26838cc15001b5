"""Predictors and outcomes from the files that the command line takes, and predictions to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from assay.errors import InputError, require
from assay.files import replacing
from assay.methods.desi.spaces import MetricSpace, quantiles_from_samples

if TYPE_CHECKING:
    from pandas import DataFrame


def read_predictors(path: Path, columns: list[str] | None = None) -> DataFrame:
    """Predictors from a CSV file with a header, or from the array `X` (or the only array) of an NPZ file.

    Args:
        columns: the columns to use, in this order; None for all.

    Raises:
        InputError: a column is missing, not numeric or incomplete; the message names it.
    """
    pandas: Any = require("pandas", extra="regression")
    table: Any
    if path.suffix == ".npz":
        values = _array(path, "X")
        if values.ndim != 2:
            raise InputError(f"{path}: predictors must be a table, not an array of shape {values.shape}")
        table = pandas.DataFrame(values, columns=[f"x{i + 1}" for i in range(values.shape[1])])
    else:
        table = _csv(path)
    if columns is not None:
        if missing := [name for name in columns if name not in table.columns]:
            raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        table = table[columns]
    for name in table.columns:
        column = pandas.to_numeric(table[name], errors="coerce")
        wrong = column.isna() | ~np.isfinite(column)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"{path}: column {name!r} has {table[name].iloc[row]} in data row {row + 1}: no "
                "finite number; clean it, or choose columns with --predictors"
            )
        table = table.assign(**{str(name): column.astype(float)})
    return table


def read_outcomes(path: Path, space: MetricSpace, samples: bool = False) -> Float[np.ndarray, "n ..."]:
    """Outcomes from a file.

    An NPZ file holds the array `Y`, or one array. A CSV file holds one row per outcome: quantiles,
    coordinates, parts, or the entries of a square matrix row by row. With `samples`, a CSV file holds raw
    samples of distributions instead: a column `row`, the number of the predictor row counted from 1, and a
        column `value`.

    Raises:
        InputError: the file does not hold such outcomes.
    """
    if samples:
        return _samples(path, space)
    if path.suffix == ".npz":
        return _array(path, "Y")
    values = _csv(path)
    try:
        array = values.to_numpy(dtype=float)
    except ValueError as error:
        raise InputError(f"{path}: outcomes must be numbers ({error})") from None
    if space.name in ("spd", "laplacian"):
        size = round(array.shape[1] ** 0.5)
        if size * size != array.shape[1]:
            raise InputError(f"{path}: {array.shape[1]} columns are not the entries of a square matrix")
        array = array.reshape(len(array), size, size)
    return array


def write_predictions(path: Path, predictions: Float[np.ndarray, "m ..."], **columns: Any) -> None:
    """Write predictions with further columns per row: NPZ keeps the shape, CSV has one row per outcome."""
    with replacing(path) as temporary:
        if path.suffix == ".npz":
            np.savez_compressed(temporary, Y=predictions, **columns)
            return
        flat = predictions.reshape(len(predictions), -1)
        names = [f"y{i + 1}" for i in range(flat.shape[1])]
        table = require("pandas", extra="regression").DataFrame(flat, columns=names)
        table.assign(**columns).to_csv(temporary, index=False)


def _samples(path: Path, space: MetricSpace) -> Float[np.ndarray, "n grid_size"]:
    if space.name != "wasserstein":
        raise InputError(f"--samples is for --space wasserstein, not {space.name}")
    table = _csv(path)
    if not {"row", "value"} <= set(table.columns):
        raise InputError(f"{path} must have the columns row and value; it has {', '.join(table.columns)}")
    groups = table.groupby("row")["value"]
    if list(groups.groups) != list(range(1, len(groups) + 1)):
        raise InputError(f"{path}: the column row must count the predictor rows 1, 2, 3, ... without gaps")
    return quantiles_from_samples([values.to_numpy() for _, values in groups], space.spec()["grid_size"])


def _csv(path: Path) -> DataFrame:
    pandas = require("pandas", extra="regression")
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        table = pandas.read_csv(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None
    if table.empty:
        raise InputError(f"{path} has no rows")
    return table


def _array(path: Path, name: str) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        # Without pickle: a file of objects could run code.
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays.files)
            chosen = name if name in names else names[0] if len(names) == 1 else None
            if chosen is None:
                raise InputError(f"{path} must hold an array named {name}; it holds {', '.join(names)}")
            return np.asarray(arrays[chosen], dtype=float)
    except InputError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is not an NPZ file of numbers: {error}") from None
