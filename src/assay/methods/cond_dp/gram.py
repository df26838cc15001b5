"""Second moments of public features in one pass over chunks of rows: memory is that of a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.cond_dp.validation import check_finite

# Entries of a chunk of rows: 32 MiB of float64.
CHUNK_ENTRIES = 2**22


def zero_singular_value(d: int) -> float:
    """The share of the largest singular value below which one from a d x d Gram matrix is rounding.

    Eigenvalues of the matrix, which are squares, carry an error of some d * 2.2e-16 of the largest.
    """
    return float(np.sqrt(100 * d * np.finfo(float).eps))


@dataclass(frozen=True)
class Moments:
    """Sums over the rows of a matrix X.

    Args:
        n_rows: how many rows.
        sums: of the columns.
        squares: sums of the columns' squares.
        gram: X^T X.
        centred: X^T X after subtracting the columns' means.
    """

    n_rows: int
    sums: Float[np.ndarray, " d"]
    squares: Float[np.ndarray, " d"]
    gram: Float[np.ndarray, "d d"]
    centred: Float[np.ndarray, "d d"]


def row_chunks(X: Any) -> Iterator[Any]:
    """Slices of consecutive rows of an array (also a memory map) or a sparse matrix."""
    n_rows, n_columns = X.shape
    rows = max(1, CHUNK_ENTRIES // max(1, n_columns))
    for start in range(0, n_rows, rows):
        yield X[start : start + rows]


def moments(chunks: Iterable[Any], names: Sequence[str] | None = None) -> Moments:
    """The moments of the rows of all chunks, each (rows, d), dense or sparse.

    Dense rows are shifted by the mean of the first chunk, so that columns with a large mean keep their
    variance to full precision.

    Raises:
        InputError: a value is not finite (the message names the column), chunks differ in width, or there are
            no rows.
    """
    shift = sums = gram = None
    n_rows = 0
    for chunk in chunks:
        if chunk.shape[0] == 0:
            continue
        if shift is not None and chunk.shape[1] != len(shift):
            raise InputError(f"a chunk of rows has {chunk.shape[1]} columns, but the first had {len(shift)}")
        if scipy.sparse.issparse(chunk):
            rows: Any = scipy.sparse.csr_array(chunk, dtype=np.float64)
            check_finite(rows, names)
            shift = np.zeros(rows.shape[1]) if shift is None else shift
            rows = rows if not shift.any() else rows.toarray() - shift
        else:
            values = np.asarray(chunk, dtype=np.float64)
            check_finite(values, names)
            shift = values.mean(axis=0) if shift is None else shift
            rows = values - shift
        product = rows.T @ rows
        product = product.toarray() if scipy.sparse.issparse(product) else product
        total = np.asarray(rows.sum(axis=0)).reshape(-1)
        gram, sums = (product, total) if gram is None else (gram + product, sums + total)
        n_rows += rows.shape[0]
    if shift is None or gram is None or sums is None:
        raise InputError("there are no rows: the conditioner needs public features to learn from")
    cross = np.outer(shift, sums)
    raw = gram + cross + cross.T + n_rows * np.outer(shift, shift)
    centred = gram - np.outer(sums, sums) / n_rows
    return Moments(n_rows, sums + n_rows * shift, np.diag(raw).copy(), raw, centred)
