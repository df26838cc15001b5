"""Numbers as a reader wants them: as many digits as the uncertainty allows, real minus signs, units."""

from __future__ import annotations

import math
from datetime import UTC, datetime

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
# Outside this range a number is easier to read with a power of ten.
_SMALLEST, _LARGEST = 1e-4, 1e5


def number(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant digits; a dash for None."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return _not_finite(value)
    if value == 0:
        return "0"
    # Of the rounded value: 0.99996 to three digits is 1.00, with a decimal less than its magnitude suggests.
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if not _SMALLEST <= abs(value) < _LARGEST:
        return f"{_fixed(value / 10.0**exponent, digits - 1)} × 10{_superscript(exponent)}"
    return _fixed(value, max(0, digits - 1 - exponent))


def interval(effect: float | None, low: float | None, high: float | None) -> str:
    """`effect [low, high]`, all with the decimals that show two digits of the interval's half-width."""
    if effect is None:
        return NOTHING
    if low is None or high is None:
        return number(effect)
    half_width = (high - low) / 2
    finite = [abs(value) for value in (effect, low, high) if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if largest == 0:
        return _bracketed(number(effect), number(low), number(high))
    if not math.isfinite(half_width) or half_width <= 1e-9 * largest:
        # No usable width: three digits of the largest number.
        decimals = 2 - math.floor(math.log10(largest))
    else:
        decimals = 1 - math.floor(math.log10(float(f"{half_width:.1e}")))
    exponent = 0
    if largest >= _LARGEST or largest < 10 * _SMALLEST:
        exponent = math.floor(math.log10(largest))
    parts = [_fixed(value / 10.0**exponent, max(0, decimals + exponent)) for value in (effect, low, high)]
    power = f" × 10{_superscript(exponent)}" if exponent else ""
    return _bracketed(*parts) + power


def probability(value: float | None) -> str:
    """A p-value: two significant digits, or the bound that it is under."""
    if value is None:
        return NOTHING
    if value < 0.001:
        return "< 0.001"
    return "1" if value > 0.995 else number(value, 2)


def percent(share: float | None) -> str:
    """0.9875 -> `98.75 %`."""
    return NOTHING if share is None else f"{100 * share:.4g} %"


def stated(value: float) -> str:
    """A number that somebody chose, such as a margin: no digits beyond those that it has."""
    mantissa, _, exponent = f"{value:g}".replace("-", MINUS).partition("e")
    if not exponent:
        return mantissa.replace("inf", "∞")
    return f"{mantissa} × 10{_superscript(int(exponent.replace(MINUS, '-')))}"


def measured(value: float | None, nan: str = "nan") -> str:
    """A measurement in a table that people copy from: four digits, with a plain hyphen as the minus sign."""
    if value is None:
        return ""
    return nan if math.isnan(value) else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 59.5:
        return f"{number(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def moment(time: datetime | None) -> str:
    """A time in UTC, to the minute, as ISO 8601 orders it."""
    return NOTHING if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 trial`, `12 trials`."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def _bracketed(effect: str, low: str, high: str) -> str:
    return f"{effect} [{low}, {high}]"


def _fixed(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return _not_finite(value)
    text = f"{value:.{decimals}f}"
    # A small negative number that rounds to zero is zero.
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else f"{MINUS}∞"


def _superscript(exponent: int) -> str:
    return str(exponent).translate(_SUPERSCRIPTS)
