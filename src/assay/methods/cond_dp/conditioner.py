"""The conditioner: a fixed linear map that evens out the spectrum of public features."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.errors import InputError
from assay.methods.cond_dp.gram import Moments, moments, row_chunks, zero_singular_value
from assay.methods.cond_dp.validation import LeakageError, check_finite

Scale = Literal["fixed", "learned"]

# Columns above which the d x d Gram matrix is not formed, and the rank that is then kept.
WIDE = 5000
WIDE_RANK = 512


class PublicConditioner(TransformerMixin, BaseEstimator):
    """Maps public features x to ratio * C x, with C = V diag((S^2 + (gamma S_1)^2)^(-power / 2)) V^T.

    U S V^T is the thin singular value decomposition of the public features. With power 1 and gamma 0 the
    mapped columns are orthonormal up to a factor: no direction is small any more, so that isotropic noise on
    gradients drowns none. C is computed from X^T X, in one pass over chunks of rows; above 5000 columns from
    a randomised decomposition, with one gain for all directions beyond `rank`. It never sees a label.

    Directions in which the features have no spread at all get the gain zero: there is nothing to learn there,
    only noise.

    Args:
        power: from 0, which gives C = I (plain DP-SGD), to 1, which evens out the spectrum wholly.
        gamma: damping; directions whose singular value is below `gamma` times the largest are amplified no
            further. 0 is allowed for features of full rank.
        rank: directions that are treated one by one; the others share a gain. None: all of them up to 5000
            columns, 512 beyond.
        scale: `"fixed"`, ratio makes the mean squared length of the mapped rows that of the rows, so that
            clipping norm and learning rate keep their meaning; `"learned"`, the same as the starting value of
            a trained factor (`CondDPRegressor`, `CondPrivacyEngine`); None, ratio is 1.
        standardize: subtract the columns' means and divide by their standard deviations before.
        private_columns: names or positions of columns that must not be used; a table that holds one is
            refused.
        random_state: seed of the randomised decomposition.

    Attributes:
        matrix_: C, (d, d) and symmetric, in the (standardised) coordinates of the columns.
        spectrum_: the singular values, largest first.
        rank_: how many of them are not zero up to rounding.
        effective_rank_: (sum S^2)^2 / sum S^4, between 1 and d: the number of equal directions with as
            concentrated a spectrum.
        ratio_: the factor in front of C.
        mean_, scale_: of the columns; zeros and ones without `standardize`. The scale of a constant column is
            zero, and the column is not used.
        components_, gains_, tail_gain_: C = sum_j gains_j v_j v_j^T + tail_gain (I - sum_j v_j v_j^T).
        notes_: what a reader should know, e.g. which columns are constant.
        n_rows_: rows that it was fitted on.
        metadata_: what was saved with it; only after `load`.

    Source: Private Learning with Public Feature Conditioning (ICML 2026), section 3, for gamma 0 and power 1;
        damping, power, rank and the truncation are ours.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray
    metadata_: dict[str, Any]

    def __init__(
        self,
        power: float = 1.0,
        gamma: float = 3e-3,
        rank: int | None = None,
        scale: Scale | None = "fixed",
        standardize: bool = False,
        private_columns: Sequence[str | int] = (),
        random_state: int = 0,
    ) -> None:
        self.power = power
        self.gamma = gamma
        self.rank = rank
        self.scale = scale
        self.standardize = standardize
        self.private_columns = private_columns
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:
        """Fit to public features: an array, memory map, data frame or SciPy sparse matrix (n, d).

        Raises:
            LeakageError: labels were passed, or a column that `private_columns` names.
            InputError: a parameter or a feature is invalid, or gamma is 0 and the rank is not full.
        """
        if y is not None:
            raise LeakageError("the conditioner must not see labels: call fit(X) without y")
        return self._fit(X)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Float[np.ndarray, "n d"]:
        """Fit to `X` and map it. A `Pipeline` hands labels to every step: they are not looked at."""
        return self._fit(X).transform(X)

    def fit_chunks(self, chunks: Iterable[Any]) -> Self:
        """Fit to public features that come as arrays or sparse matrices (rows, d), e.g. from a file.

        Raises:
            InputError: as `fit`, or there are more than 5000 columns.
        """
        self._check_parameters()
        rows = iter(chunks)
        first = next(rows, None)
        if first is None:
            raise InputError("there are no rows: the conditioner needs public features to learn from")
        self.n_features_in_ = first.shape[1]
        names = getattr(first, "columns", None)
        if names is not None:
            self.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
        self._refuse_private(names)
        if self.n_features_in_ > WIDE:
            raise InputError(
                f"chunks of {self.n_features_in_} columns: above {WIDE} pass all rows to fit at once"
            )
        return self._from_moments(moments(itertools.chain([first], rows), names))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Self:
        """A conditioner that multiplies by a given matrix, e.g. one from another program.

        Raises:
            InputError: the matrix is not square, finite, symmetric and positive semi-definite.
        """
        C = np.asarray(matrix, dtype=np.float64)
        if C.ndim != 2 or C.shape[0] != C.shape[1] or C.shape[0] == 0:
            raise InputError(f"a conditioner is a square matrix, not an array of shape {C.shape}")
        if not np.isfinite(C).all():
            raise InputError("the conditioner has entries that are not finite numbers")
        size = np.abs(C).max()
        if np.abs(C - C.T).max() > 1e-6 * size:
            raise InputError("the conditioner is not symmetric: pass C = V diag(gains) V^T")
        gains, vectors = np.linalg.eigh((C + C.T) / 2)
        if gains[0] < -1e-6 * size:
            raise InputError(
                f"the conditioner is not positive semi-definite: it has the eigenvalue {gains[0]:.3g}"
            )
        conditioner = cls.identity(len(C))
        conditioner.power = 1.0
        conditioner.components_, conditioner.gains_ = vectors.T.copy(), np.maximum(gains, 0.0)
        conditioner.tail_gain_ = 0.0
        return conditioner

    @classmethod
    def identity(cls, n_features: int) -> Self:
        """The conditioner C = I, which is computed from nothing: plain DP-SGD."""
        conditioner = cls(power=0.0, scale=None)
        conditioner.n_features_in_, conditioner.n_rows_ = n_features, 0
        conditioner.mean_, conditioner.scale_ = np.zeros(n_features), np.ones(n_features)
        conditioner.column_sums_ = conditioner.column_squares_ = np.full(n_features, math.nan)
        conditioner.components_, conditioner.gains_ = np.zeros((0, n_features)), np.zeros(0)
        conditioner.tail_gain_, conditioner.ratio_ = 1.0, 1.0
        conditioner.spectrum_, conditioner.effective_rank_ = np.zeros(0), math.nan
        conditioner.rank_ = n_features
        conditioner.notes_ = ()
        return conditioner

    @property
    def matrix_(self) -> Float[np.ndarray, "d d"]:
        check_is_fitted(self, "gains_")
        if self.n_features_in_ > WIDE:
            raise InputError(
                f"the matrix of {self.n_features_in_} columns would not fit into memory: use transform, or "
                "components_, gains_ and tail_gain_"
            )
        C = (self.components_.T * (self.gains_ - self.tail_gain_)) @ self.components_
        C[np.diag_indices_from(C)] += self.tail_gain_
        unused = self.scale_ == 0
        C[unused] = C[:, unused] = 0.0
        return (C + C.T) / 2

    @property
    def is_identity_(self) -> bool:
        """Whether C = I: no column is dropped, and nothing is mapped beyond standardisation."""
        return not len(self.gains_) and self.tail_gain_ == 1.0 and bool((self.scale_ > 0).all())

    def transform(self, X: Any) -> Float[np.ndarray, "m d"]:
        """ratio * C applied to every (standardised) row.

        Raises:
            InputError: `X` has other columns than in training, or values that are not finite.
        """
        check_is_fitted(self, "gains_")
        X = self._validated(X, reset=False)
        inverse = self._inverse_scale()
        offset = self.mean_ * inverse
        if scipy.sparse.issparse(X):
            rows: Any = X.multiply(inverse).tocsr()
            narrow = rows @ self.components_.T - offset @ self.components_.T
            wide = rows.toarray() - offset if self.tail_gain_ else 0.0
        else:
            plain = self.is_identity_ and not self.mean_.any() and (self.scale_ == 1).all()
            rows = X if plain else X * inverse - offset
            narrow, wide = rows @ self.components_.T, rows
        mapped = (narrow * (self.gains_ - self.tail_gain_)) @ self.components_ if len(self.gains_) else 0.0
        if self.tail_gain_:
            mapped = mapped + (wide if self.tail_gain_ == 1 else self.tail_gain_ * wide)
        mapped = mapped if self.ratio_ == 1 else mapped * self.ratio_
        return np.array(mapped) if mapped is X else np.asarray(mapped)

    def on_standardized(self) -> PublicConditioner:
        """The same map for features that are standardised already."""
        check_is_fitted(self, "gains_")
        other = copy.copy(self)
        other.mean_, other.scale_ = np.zeros_like(self.mean_), (self.scale_ > 0).astype(float)
        return other

    def standardized(self, X: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """(X - mean_) / scale_, zero in columns that are not used."""
        inverse = self._inverse_scale()
        return X * inverse - self.mean_ * inverse

    def in_original_units(self, weights: Float[np.ndarray, " d"]) -> tuple[Float[np.ndarray, " d"], float]:
        """Weights of the mapped features as weights and an offset of the features themselves.

        `transform(X) @ weights == X @ coef + offset`.
        """
        mapped = self.components_.T @ ((self.gains_ - self.tail_gain_) * (self.components_ @ weights))
        coef = (mapped + self.tail_gain_ * weights) * self.ratio_ * self._inverse_scale()
        return coef, -float(self.mean_ @ coef)

    def saw_rows_of(self, X: Any) -> bool:
        """Whether it was fitted on exactly these rows, in any order.

        A part of them, or more rows beside them, is not noticed.
        """
        if X.shape[0] != self.n_rows_ or X.shape[1] != self.n_features_in_:
            return False
        values = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X, dtype=float)
        sums, squares = values.sum(axis=0), (values**2).sum(axis=0)
        size = np.sqrt(self.n_rows_ * squares)
        return bool(
            np.all(np.abs(sums - self.column_sums_) <= 1e-9 * size)
            and np.allclose(squares, self.column_squares_, rtol=1e-9, atol=0.0)
        )

    def save(self, path: Path | str, metadata: Mapping[str, Any] | None = None) -> None:
        """Write the fitted conditioner to an .npz file (`conditioner_file.save_conditioner`)."""
        from assay.methods.cond_dp.conditioner_file import save_conditioner

        save_conditioner(self, Path(path), metadata or {})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote (`conditioner_file.load_conditioner`)."""
        from assay.methods.cond_dp.conditioner_file import load_conditioner

        return load_conditioner(Path(path), cls)

    def _fit(self, X: Any) -> Self:
        self._check_parameters()
        X = self._validated(X, reset=True)
        names = getattr(self, "feature_names_in_", None)
        self._refuse_private(names)
        if X.shape[1] <= WIDE:
            return self._from_moments(moments(row_chunks(X), names))
        return self._from_randomised(X)

    def _from_moments(self, collected: Moments) -> Self:
        self._keep_columns(collected.n_rows, collected.sums, collected.squares, np.diag(collected.centred))
        inverse = self._inverse_scale()
        gram = (collected.centred if self.standardize else collected.gram) * np.outer(inverse, inverse)
        if self.power == 0:
            spectrum = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
            vectors = np.zeros((0, len(gram)))
        else:
            values, columns = np.linalg.eigh(gram)
            spectrum, vectors = np.sqrt(np.maximum(values[::-1], 0.0)), columns[:, ::-1].T
        self._keep_spectrum(spectrum, vectors, float(np.trace(gram)))
        return self

    def _from_randomised(self, X: Any) -> Self:
        sparse = scipy.sparse.issparse(X)
        if sparse and self.standardize:
            raise InputError(
                f"standardize=True would make a sparse matrix of {X.shape[1]} columns dense: pass "
                "standardize=False"
            )
        check_finite(X, getattr(self, "feature_names_in_", None))
        sums = np.asarray(X.sum(axis=0), dtype=float).reshape(-1)
        squares = np.asarray((X.multiply(X) if sparse else X**2).sum(axis=0), dtype=float).reshape(-1)
        self._keep_columns(X.shape[0], sums, squares, squares - sums**2 / X.shape[0])
        inverse = self._inverse_scale()
        rows: Any = X.multiply(inverse).tocsr() if sparse else (X - self.mean_) * inverse
        energy = float(rows.multiply(rows).sum() if sparse else (rows**2).sum())
        rank = min(WIDE_RANK if self.rank is None else self.rank, min(X.shape) - 1)
        _, spectrum, vectors = randomized_svd(rows, rank, random_state=self.random_state)
        self._keep_spectrum(spectrum, vectors, energy)
        return self

    def _keep_columns(
        self,
        n_rows: int,
        sums: Float[np.ndarray, " d"],
        squares: Float[np.ndarray, " d"],
        centred_squares: Float[np.ndarray, " d"],
    ) -> None:
        d = len(sums)
        self.n_rows_, self.column_sums_, self.column_squares_ = n_rows, sums, squares
        spread = np.sqrt(np.maximum(centred_squares, 0.0) / n_rows)
        # A spread that is rounding noise of the values' own size is none.
        constant = spread <= 1e-7 * np.sqrt(squares / n_rows)
        self.mean_ = sums / n_rows if self.standardize else np.zeros(d)
        self.scale_ = np.where(constant, 0.0, spread if self.standardize else 1.0)
        self.notes_ = ()
        if constant.all():
            raise InputError(
                f"every public column is constant in the {n_rows} rows: there is nothing to learn from"
            )
        if constant.any():
            names = getattr(self, "feature_names_in_", np.arange(d).astype(str))
            shown = ", ".join(map(str, names[constant][:10])) + (", ..." if constant.sum() > 10 else "")
            self._note(f"constant public columns are not used: {shown}")

    def _keep_spectrum(
        self, spectrum: Float[np.ndarray, " r"], vectors: Float[np.ndarray, "k d"], energy: float
    ) -> None:
        """Gains from the leading singular values and their right vectors; `energy` is the sum of all S^2."""
        d = int((self.scale_ > 0).sum())
        self.spectrum_ = spectrum[:d]
        self.effective_rank_ = float((spectrum**2).sum() ** 2 / (spectrum**4).sum())
        self.components_, self.gains_, self.tail_gain_, self.ratio_ = vectors[:0], np.zeros(0), 1.0, 1.0
        zero = zero_singular_value(d) * spectrum[0]
        nonzero = self.rank_ = int((spectrum > zero).sum())
        if self.power == 0:
            return
        complete = len(spectrum) >= d
        if complete and nonzero < d:
            if self.gamma == 0:
                raise InputError(
                    f"the public features have rank {nonzero} of {d} columns, and gamma is 0: pass gamma > 0 "
                    "(3e-3 is a good start), or drop linearly dependent columns"
                )
            self._note(f"the public features have rank {nonzero} of {d} columns: small directions are damped")
        kept = min(nonzero, self.rank or nonzero)
        self.components_ = vectors[:kept].copy()
        self.gains_ = self._gain(spectrum[:kept], spectrum[0])
        tail_energy = max(energy - float((spectrum[:kept] ** 2).sum()), 0.0)
        others = (nonzero if complete else min(self.n_rows_, d)) - kept
        self.tail_gain_ = 0.0
        if others > 0 and tail_energy > zero**2:
            self.tail_gain_ = float(self._gain(np.array([math.sqrt(tail_energy / others)]), spectrum[0])[0])
        if self.scale is not None:
            mapped = float(((self.gains_ * spectrum[:kept]) ** 2).sum()) + self.tail_gain_**2 * tail_energy
            self.ratio_ = math.sqrt(energy / mapped)

    def _gain(self, singular: Float[np.ndarray, " r"], largest: float) -> Float[np.ndarray, " r"]:
        return (singular**2 + (self.gamma * largest) ** 2) ** (-self.power / 2)

    def _inverse_scale(self) -> Float[np.ndarray, " d"]:
        return np.divide(1.0, self.scale_, out=np.zeros_like(self.scale_), where=self.scale_ > 0)

    def _note(self, text: str) -> None:
        self.notes_ = (*self.notes_, text)
        warnings.warn(text, stacklevel=6)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        try:
            values: Any = validate_data(
                self,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype=(np.float64, np.float32),
                ensure_all_finite=False,
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        if not reset:
            check_finite(values, getattr(self, "feature_names_in_", None))
        return values

    def _refuse_private(self, names: Any) -> None:
        present = {str(name) for name in names} if names is not None else set()
        used = [
            str(column)
            for column in self.private_columns
            if (str(column) in present if isinstance(column, str) else column < self.n_features_in_)
        ]
        if used:
            raise LeakageError(
                f"the conditioner must be computed from public columns, but {', '.join(used)} is marked "
                "private: "
                "leave private columns out of the table"
            )

    def _check_parameters(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        for name, low, high in (("power", 0.0, 1.0), ("gamma", 0.0, 1.0)):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and low <= value <= high):
                raise InputError(f"{name} is {value!r}: pass a number from {low:g} to {high:g}")
        if self.rank is not None and not (isinstance(self.rank, int | np.integer) and self.rank >= 1):
            raise InputError(f"rank is {self.rank!r}: pass a whole number >= 1, or None")
        if self.scale not in ("fixed", "learned", None):
            raise InputError(f"scale is {self.scale!r}: choose 'fixed', 'learned' or None")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
