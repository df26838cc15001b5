"""Reading predictors and labels from a table on disk."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
from jaxtyping import Float

from assay.errors import InputError, MissingDependencyError, require


def read_table(
    path: Path | str, target: str
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], list[str]]:
    """Predictors, labels and the names of the predictors from a CSV or Parquet file.

    Args:
        target: the column of the labels; all others are predictors.

    Raises:
        InputError: the file is no table, has no such column, or a column is not numeric.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    pandas = require("pandas", extra="regression")
    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            importlib.import_module("pyarrow")
        except ImportError:
            raise MissingDependencyError("reading Parquet needs pyarrow: pip install pyarrow") from None
        reader = pandas.read_parquet
    else:
        reader = pandas.read_csv
    try:
        table = reader(path)
    except (ValueError, pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise InputError(f"{path} is no table: {error}") from None
    if target not in table.columns:
        raise InputError(f"{path} has no column {target!r}; it has {', '.join(map(str, table.columns))}")
    for column in table.columns:
        if not pandas.api.types.is_numeric_dtype(table[column]):
            raise InputError(f"{path}: column {column!r} is not numeric: encode or remove it")
    predictors = [column for column in table.columns if column != target]
    if not predictors:
        raise InputError(f"{path} has no column besides the target {target!r}")
    X = table[predictors].to_numpy(dtype=np.float64, na_value=np.nan)
    y = table[target].to_numpy(dtype=np.float64, na_value=np.nan)
    return X, y, [str(column) for column in predictors]
