"""What `certify` returns: a `Certificate` or an `Estimate`, two types that share no guarantee and no name for
one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import numpy as np

from assay.errors import InputError
from assay.files import as_json, write_json

SCHEMA = "assay.lp_stability.statement/1"
Target = Literal["training risk", "leave-one-out risk", "hold-out"]


@dataclass(frozen=True)
class BoundRow:
    """One bound of the table.

    Attributes:
        bound: its name.
        target: what it is added to, or that it comes from the hold-out rows.
        radius: how far the risk may lie above its reference, without the bias; infinite where the bound does
            not apply.
        upper: the bound of the risk.
        p: the moment order that it used.
        reason: why it is infinite.
    """

    bound: str
    target: Target
    radius: float
    upper: float
    p: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Findings:
    """What a certificate and an estimate both report; by itself it states nothing.

    Attributes:
        estimator: the learner, as text.
        loss: the name of the loss.
        delta: the probability with which the bound may fail.
        m: training rows; the model is fitted to them.
        n_reserve: rows held out.
        risk_emp: training risk.
        risk_loo: leave-one-out risk, where a shortcut gives it.
        bias: bound of E[risk - training risk] that is part of the gap.
        risk_constant: training risk of the best constant predictor.
        table: all bounds.
        decomposition: the radius of the stability part and of the sampling part alone, and the bias.
        assumed: the assumptions in words.
        declared: the constants that were declared.
        over: the randomness over which the probability is meant.
        subject: what the risk is the mean loss of.
        warnings: what a reader should know.
        inputs: SHA-256 of the rows and of what else determines the result.
        seed: of the split and of all draws.
        reason: why there is no finite bound; empty where there is one.
    """

    estimator: str
    loss: str
    delta: float
    m: int
    n_reserve: int
    risk_emp: float
    risk_loo: float | None
    bias: float
    risk_constant: float
    table: tuple[BoundRow, ...]
    decomposition: Mapping[str, float]
    assumed: tuple[str, ...]
    declared: Mapping[str, Any]
    over: str
    subject: str
    warnings: tuple[str, ...]
    inputs: Mapping[str, str]
    seed: int
    reason: str = ""

    def save(self, path: Path | str) -> Path:
        """Write the statement as JSON with a digest over its content; returns the path."""
        content = as_json({f.name: _plain(getattr(self, f.name)) for f in fields(self)})
        head = {"schema": SCHEMA, "type": type(self).__name__.lower()}
        write_json(path, {**head, "sha256": _digest({**head, "content": content}), "content": content})
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a statement and verify it.

        Raises:
            InputError: the file is no statement of this type and schema, was changed after it was written, or
                contradicts itself.
        """
        content = _verified_content(Path(path), cls.__name__.lower())
        expected = {f.name for f in fields(cls)}
        if set(content) != expected:
            odd = ", ".join(sorted(set(content) ^ expected))
            raise InputError(f"{path}: the content lacks or has unknown fields: {odd}")
        try:
            statement = cls(**{name: _restored(name, value) for name, value in content.items()})
            statement._check()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: the content is not valid: {error}") from None
        return statement

    def verify(self, X: Any, y: Any) -> None:
        """Check that the statement was made from these rows.

        Raises:
            InputError: other rows.
        """
        found = hash_rows(np.asarray(X, dtype=float), np.asarray(y, dtype=float))
        for name, value in found.items():
            if self.inputs.get(name) != value:
                raise InputError(
                    f"{name} has the SHA-256 {value[:12]}..., but the statement was made from "
                    f"{str(self.inputs.get(name))[:12]}...: it doesn't speak of these rows"
                )

    def _check(self) -> None:
        """Raise a ValueError where fields contradict each other."""
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}")

    def _table_lines(self) -> list[str]:
        width = max((len(row.bound) for row in self.table), default=0)
        return [
            f"  {row.bound:<{width}}  {row.target:<18}  "
            + (
                f"{row.upper:.6g}"
                if math.isfinite(row.upper)
                else f"none ({row.reason.removeprefix(row.bound + ': ')})"
            )
            + (f"  (p = {row.p:g})" if row.p is not None and math.isfinite(row.upper) else "")
            for row in self.table
        ]

    def _notes(self) -> list[str]:
        parts = "; ".join(f"{name} {value:.6g}" for name, value in self.decomposition.items())
        return [
            f"Training risk {self.risk_emp:.6g} on {self.m} rows"
            + (f", leave-one-out risk {self.risk_loo:.6g}" if self.risk_loo is not None else "")
            + f"; the best constant predictor has {self.risk_constant:.6g}.",
            *([f"Parts of the gap, each alone: {parts}."] if parts else []),
            *(f"Note: {warning}" for warning in self.warnings),
        ]


@dataclass(frozen=True)
class Certificate(Findings):
    """A guarantee: with probability at least 1 - delta over `over`, if the assumptions hold, the risk is <=
    `upper`.

    Attributes:
        kind: `"certificate"` when every assumption is a declared constant or a property of the algorithm;
            `"conditional"` when one is a property of an unknown law or solver that nothing here proves.
        upper: bound of the risk; infinite, with `reason`, where no valid bound is finite.
        gap: `upper - risk_emp`.
        upper_loo: the bound that starts from the leave-one-out risk; holds at the same confidence by itself,
            not together with `upper`.
        delta_moments: the part of delta that the estimated moments cost.
        vacuous: the bound is more than twice the risk of the best constant predictor.
    """

    kind: Literal["certificate", "conditional"] = field(kw_only=True)
    upper: float = field(kw_only=True)
    gap: float = field(kw_only=True)
    upper_loo: float | None = field(kw_only=True)
    delta_moments: float = field(kw_only=True)
    vacuous: bool = field(kw_only=True)

    def sentence(self) -> str:
        """The guarantee in one sentence."""
        if not math.isfinite(self.upper):
            return f"No finite bound is valid here: {self.reason}."
        name = "With" if self.kind == "certificate" else "On the condition of all that is assumed, with"
        return (
            f"{name} probability at least {1 - self.delta:g} over the {self.over}, assuming "
            f"{'; '.join(self.assumed)}, E loss <= {self.upper:.6g} {self.subject}."
        )

    def text(self) -> str:
        """The statement for people: whether it is vacuous, the sentence, the table of bounds."""
        lines = [self.sentence(), *self._notes(), "Upper bounds of the risk:", *self._table_lines()]
        if self.vacuous:
            lines.insert(
                0,
                "This certificate is vacuous: its bound is more than twice the risk of the best constant "
                "predictor.",
            )
        return "\n".join(lines)

    def _check(self) -> None:
        super()._check()
        if self.kind not in ("certificate", "conditional"):
            raise ValueError(f"kind is {self.kind!r}")
        if math.isfinite(self.upper):
            if not math.isclose(self.upper, self.risk_emp + self.gap, rel_tol=1e-9, abs_tol=1e-12):
                raise ValueError(f"upper {self.upper} is not risk_emp {self.risk_emp} plus gap {self.gap}")
        elif not self.reason:
            raise ValueError("there is no finite bound and no reason")


@dataclass(frozen=True)
class Estimate(Findings):
    """Measured stability and what the bounds would say if the measured moments were the true ones. No
    guarantee.

    It has no `upper`: reading it raises an error, so that no code takes an estimate for a certificate.

    Attributes:
        kind: `"estimate"`.
        plug_in: training risk plus the least plug-in radius plus the estimated bias; infinite, with `reason`,
            where the sample is too small to say.
        coefficients: p -> L_p norm of the largest change of a loss.
        intervals: p -> 95 % bootstrap interval of that norm.
        n_pairs: swaps measured.
        method_used: how the changed fits were computed.
        why_no_certificate: what is missing for one.
    """

    kind: Literal["estimate"] = field(kw_only=True, default="estimate")
    plug_in: float = field(kw_only=True)
    coefficients: Mapping[float, float] = field(kw_only=True)
    intervals: Mapping[float, tuple[float, float]] = field(kw_only=True)
    n_pairs: int = field(kw_only=True)
    method_used: str = field(kw_only=True)
    why_no_certificate: str = field(kw_only=True)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("upper", "gap", "upper_loo"):
            raise AttributeError(
                f"an Estimate has no {name!r}: it bounds nothing. Its plug_in is a guess, not a guarantee; "
                f"for a certificate: {self.why_no_certificate}"
            )
        raise AttributeError(f"'Estimate' object has no attribute {name!r}")

    def sentence(self) -> str:
        """The finding in one sentence."""
        start = "This is an estimate, not a guarantee"
        if not math.isfinite(self.plug_in):
            return f"{start}, and even the estimate is missing: {self.reason}."
        return (
            f"{start}: if the moments measured on {self.n_pairs} swaps were the true ones, E loss would be "
            f"at most {self.plug_in:.6g} {self.subject} with probability {1 - self.delta:g} over the "
            f"{self.over}."
        )

    def text(self) -> str:
        """The finding for people: the sentence, why it is no certificate, the table of plug-in values."""
        norms = [
            f"  p = {p:g}: {value:.6g} (95% interval {low:.4g} to {high:.4g})"
            for (p, value), (low, high) in zip(
                self.coefficients.items(), self.intervals.values(), strict=True
            )
        ]
        return "\n".join(
            [
                self.sentence(),
                f"No certificate: {self.why_no_certificate}.",
                *self._notes(),
                f"L_p norms of the largest change of a loss ({self.method_used}):",
                *norms,
                "Plug-in values, and hold-out bounds where their assumptions were declared:",
                *self._table_lines(),
            ]
        )

    def _check(self) -> None:
        super()._check()
        if self.kind != "estimate":
            raise ValueError(f"kind is {self.kind!r}")
        if not math.isfinite(self.plug_in) and not self.reason:
            raise ValueError("there is no finite value and no reason")


def hash_rows(X: np.ndarray, y: np.ndarray) -> dict[str, str]:
    """SHA-256 of the predictors and of the labels, as 64-bit floats with their shapes."""
    return {name: _hash_array(values) for name, values in (("X", X), ("y", y))}


def _hash_array(values: np.ndarray) -> str:
    values = np.ascontiguousarray(values, dtype="<f8")
    return hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).hexdigest()


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _verified_content(path: Path, kind: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != {"schema", "type", "sha256", "content"}:
        raise InputError(f"{path} is no certificate: it needs the fields schema, type, sha256 and content")
    if document["schema"] != SCHEMA:
        raise InputError(f"{path} has the schema {document['schema']!r}; this version reads {SCHEMA!r}")
    if document["type"] != kind:
        raise InputError(f"{path} holds an object of type {document['type']!r}, not {kind!r}")
    sealed = {name: document[name] for name in ("schema", "type", "content")}
    if _digest(sealed) != document["sha256"] or not isinstance(document["content"], dict):
        raise InputError(f"{path} was changed after it was written: its SHA-256 doesn't match; make it again")
    return document["content"]


def _plain(value: Any) -> Any:
    """As JSON values, exactly: bound rows as mappings, NumPy scalars as Python's."""
    if isinstance(value, BoundRow):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _restored(name: str, value: Any) -> Any:
    """The value of a field from its JSON value."""
    if name == "table":
        return tuple(BoundRow(**{key: _number(item, key) for key, item in row.items()}) for row in value)
    if name in ("coefficients", "intervals"):
        return {
            float(p): tuple(map(float, item)) if isinstance(item, list) else float(item)
            for p, item in value.items()
        }
    if name == "decomposition":
        return {key: float(item) for key, item in value.items()}
    if name in ("assumed", "warnings"):
        return tuple(value)
    return _number(value, name)


NUMBERS = (
    "delta",
    "risk_emp",
    "risk_loo",
    "bias",
    "risk_constant",
    "upper",
    "gap",
    "upper_loo",
    "plug_in",
    "radius",
)


def _number(value: Any, name: str) -> Any:
    return float(value) if value is not None and name in (*NUMBERS, "delta_moments") else value
