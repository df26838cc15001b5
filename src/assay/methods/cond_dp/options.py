"""The values of command-line options that are more than one number or name."""

from __future__ import annotations

import math

from assay.errors import InputError


def parse_names(text: str | None) -> list[str]:
    """The names in `a,b,c`."""
    found = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(set(found)) < len(found):
        raise InputError(f"a column is named twice in {text!r}")
    return found


def parse_range(text: str) -> tuple[float, float]:
    """The two ends of `low,high`."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--y-range is {text!r}: pass two numbers, e.g. --y-range 0,10") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"--y-range is {text!r}: pass two finite numbers, the smaller one first")
    return low, high


def parse_ranges(text: str | None) -> dict[str, tuple[float, float]]:
    """The ranges in `name:low:high,name:low:high`."""
    found = {}
    for part in parse_names(text):
        name, _, ends = part.partition(":")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise InputError(f"--private has {part!r}: declare its range, e.g. {name}:0:100") from None
        found[name] = (low, high)
    return found


def parse_levels(items: list[str] | None) -> dict[str, list[str]]:
    """The levels in items such as `colour=red,green,blue`."""
    found = {}
    for item in items or []:
        name, _, texts = item.partition("=")
        if not parse_names(texts):
            raise InputError(
                f"--levels has {item!r}: pass a column and its levels, e.g. colour=red,green,blue"
            )
        found[name] = parse_names(texts)
    return found


def parse_widths(text: str) -> tuple[int, ...]:
    """The whole numbers in `64,32`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--hidden is {text!r}: pass widths separated by commas, e.g. 64,32") from None
