"""Tables from CSV and Parquet files, and their columns as numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.errors import InputError, require
from assay.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Rows that are in memory at a time where one pass over a file is enough.
CHUNK_ROWS = 2**16
MOST_LEVELS = 2000


@dataclass(frozen=True)
class Encoding:
    """How columns become numbers: a category has a column of zeros and ones for each of its levels.

    Args:
        columns: names, in order.
        levels: category -> its levels as text, in order. Other columns are numbers.
    """

    columns: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]

    @property
    def features(self) -> list[str]:
        """The names of the encoded columns: `name`, or `name=level`."""
        return [
            feature
            for name in self.columns
            for feature in (
                [f"{name}={level}" for level in self.levels[name]] if name in self.levels else [name]
            )
        ]

    def encode(self, table: DataFrame, path: Path | str = "the table") -> DataFrame:
        """The encoded columns as float64. A level that is not known becomes zeros.

        Raises:
            InputError: a column is missing, or has a value that is not a finite number; the message names it.
        """
        pandas: Any = require("pandas", extra="privacy")
        check_columns(table, self.columns, path)
        parts = []
        for name in self.columns:
            column: Any = table[name]
            if name in self.levels:
                texts = category_texts(column, path)
                parts += [(texts == level).to_numpy(dtype=float) for level in self.levels[name]]
            else:
                parts.append(numbers(column, path))
        return pandas.DataFrame(np.column_stack(parts), columns=self.features)

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` reads."""
        return {
            "columns": list(self.columns),
            "levels": {name: list(found) for name, found in self.levels.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Encoding:
        """Read what `to_json` wrote."""
        return cls(
            tuple(document["columns"]), {name: tuple(found) for name, found in document["levels"].items()}
        )


def learn_encoding(
    chunks: Iterator[DataFrame] | Sequence[DataFrame],
    columns: Sequence[str],
    *,
    categories: Sequence[str] = (),
    declared: Mapping[str, Sequence[str]] | None = None,
    path: Path | str = "the table",
) -> Encoding:
    """The encoding of public columns: text columns are categories with the levels that occur.

    Args:
        chunks: the rows, which must be public.
        columns: the columns to encode.
        categories: columns of numbers that are categories.
        declared: category -> its levels, where they are not to be taken from the rows.
        path: for messages.

    Raises:
        InputError: a column is missing, has too many levels, or is neither numbers nor text.
    """
    declared = declared or {}
    if unknown := [name for name in (*categories, *declared) if name not in columns]:
        raise InputError(f"{', '.join(unknown)}: not among the public columns {', '.join(columns)}")
    found: dict[str, set[str]] = {name: set() for name in categories if name not in declared}
    pandas: Any = require("pandas", extra="privacy")
    for chunk in chunks:
        check_columns(chunk, columns, path)
        for name in columns:
            if name in declared:
                continue
            column: Any = chunk[name]
            if name not in found and not pandas.api.types.is_numeric_dtype(column):
                found[name] = set()
            if name in found:
                found[name] |= set(category_texts(column, path).unique())
                if len(found[name]) > MOST_LEVELS:
                    raise InputError(
                        f"{path}: column {name!r} has more than {MOST_LEVELS} levels: leave it out, group "
                        "them, or "
                        "declare the levels that matter"
                    )
    levels = {name: tuple(sorted(texts)) for name, texts in found.items()}
    levels |= {name: tuple(map(str, texts)) for name, texts in declared.items()}
    return Encoding(tuple(columns), levels)


def read_table(path: Path, columns: Sequence[str]) -> DataFrame:
    """Some columns of a CSV or Parquet file.

    Raises:
        InputError: the file cannot be read, is empty, or lacks a column.
    """
    pandas: Any = require("pandas", extra="privacy")
    table = pandas.concat(list(read_chunks(path, columns)), ignore_index=True)
    if table.empty:
        raise InputError(f"{path} has no rows")
    return table


def read_chunks(path: Path, columns: Sequence[str]) -> Iterator[DataFrame]:
    """Some columns of a CSV or Parquet file, in chunks of rows.

    Raises:
        InputError: the file cannot be read, or lacks a column.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    wanted = list(dict.fromkeys(columns))
    if path.suffix == ".csv":
        yield from _csv_chunks(path, wanted)
    elif path.suffix in (".parquet", ".pq"):
        yield from _parquet_chunks(path, wanted)
    else:
        raise InputError(f"{path} must end in .csv or .parquet, not {path.suffix or 'nothing'}")


def write_table(path: Path, table: DataFrame) -> None:
    """Write a table as CSV or Parquet, by the name's ending.

    Raises:
        InputError: the name ends in something else.
    """
    if path.suffix not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{path} must end in .csv or .parquet, not {path.suffix or 'nothing'}")
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, index=False)


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_columns(table: DataFrame, columns: Sequence[str], path: Path | str) -> None:
    """Raise an InputError that names the columns that a table lacks."""
    if missing := [name for name in columns if name not in table.columns]:
        raise InputError(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(map(str, table.columns))}"
        )


def numbers(column: Series, path: Path | str) -> np.ndarray:
    """A column as finite float64 numbers.

    Raises:
        InputError: it has something else; the message names column and row, but not the value.
    """
    pandas: Any = require("pandas", extra="privacy")
    values = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"{path}: column {column.name!r} has no finite number in data row {int(np.argmax(wrong)) + 1}: "
            "fill in or "
            "drop such rows"
        )
    return values


def category_texts(column: Series, path: Path | str) -> Series:
    """A column's values as text.

    Raises:
        InputError: values are missing.
    """
    if column.isna().any():
        row = int(np.argmax(column.isna())) + 1
        raise InputError(
            f"{path}: column {column.name!r} has no value in data row {row}: fill in a level for it"
        )
    return column.astype(str)


def _csv_chunks(path: Path, columns: list[str]) -> Iterator[DataFrame]:
    pandas: Any = require("pandas", extra="privacy")
    try:
        header = pandas.read_csv(path, nrows=0)
        check_columns(header, columns, path)
        with pandas.read_csv(path, usecols=columns, chunksize=CHUNK_ROWS, low_memory=False) as reader:
            yield from reader
    except InputError:
        raise
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file: {error}") from None


def _parquet_chunks(path: Path, columns: list[str]) -> Iterator[DataFrame]:
    parquet: Any = require("pyarrow.parquet", extra="privacy")
    arrow: Any = require("pyarrow", extra="privacy")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := [name for name in columns if name not in names]:
                raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(names)}")
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=columns):
                yield batch.to_pandas()
    except arrow.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file: {error}") from None
