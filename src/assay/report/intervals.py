"""An effect and its interval as a strip: a dot on a line, over a band where the claim holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.report import numerals
from assay.report.runs import ClaimRow

WIDTH, HEIGHT, INSET = 200.0, 22.0, 8.0


@dataclass(frozen=True)
class Strip:
    """Coordinates within `WIDTH` x `HEIGHT`.

    Args:
        low, high: the ends of the interval, cut at the edges; `open_low` and `open_high` say that it goes on.
        band: where the claim holds, from left to right; None when unknown.
        bounds: the finite ends of the band.
        label: the same in words.
    """

    effect: float
    low: float
    high: float
    open_low: bool
    open_high: bool
    band: tuple[float, float] | None
    bounds: tuple[float, ...]
    label: str


def strips(rows: Sequence[ClaimRow]) -> dict[str, Strip]:
    """A strip per claim that has an interval. Claims with the same unit share an axis, to compare."""
    drawable = [row for row in rows if row.verdict is not None and _ends(row) is not None]
    extents: dict[str, list[float]] = {}
    for row in drawable:
        extents.setdefault(_unit(row), []).extend(_landmarks(row))
    return {row.id: _strip(row, extents[_unit(row)]) for row in drawable}


def _unit(row: ClaimRow) -> str:
    return row.verdict.unit if row.verdict is not None else ""


def _ends(row: ClaimRow) -> tuple[float, float, float] | None:
    verdict = row.verdict
    if verdict is None or verdict.effect is None or verdict.low is None or verdict.high is None:
        return None
    ends = verdict.effect, verdict.low, verdict.high
    return None if any(math.isnan(value) for value in ends) or math.isinf(ends[0]) else ends


def _landmarks(row: ClaimRow) -> list[float]:
    effect, low, high = _ends(row) or (math.nan,) * 3
    # An open end gets as much room as the closed one, so that its arrow shows.
    mirrored = [2 * effect - end for end, other in ((low, high), (high, low)) if math.isinf(other)]
    return [value for value in (effect, low, high, *mirrored, *(row.region or ())) if math.isfinite(value)]


def _strip(row: ClaimRow, extent: Sequence[float]) -> Strip:
    ends = _ends(row)
    assert ends is not None
    effect, low, high = ends
    left, right = min(extent), max(extent)
    # An axis of no length: a single exact value.
    span = right - left or abs(right) or 1.0
    middle = (left + right) / 2

    def place(value: float) -> float:
        if math.isinf(value):
            return 0.0 if value < 0 else WIDTH
        return round(WIDTH / 2 + (value - middle) / span * (WIDTH - 2 * INSET), 2)

    region = row.region
    bounds = tuple(place(bound) for bound in region or () if math.isfinite(bound))
    return Strip(
        effect=place(effect),
        low=place(low),
        high=place(high),
        open_low=math.isinf(low),
        open_high=math.isinf(high),
        band=(place(region[0]), place(region[1])) if region else None,
        bounds=bounds,
        label=f"{numerals.interval(effect, low, high)}; {holds_where(region)}"
        if region
        else numerals.interval(*ends),
    )


def holds_where(region: tuple[float, float] | None) -> str:
    """The band in words."""
    if region is None:
        return ""
    low, high = region
    if math.isinf(high):
        return f"holds above {numerals.stated(low)}"
    if math.isinf(low):
        return f"holds below {numerals.stated(high)}"
    return f"holds between {numerals.stated(low)} and {numerals.stated(high)}"
