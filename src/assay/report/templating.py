"""The Jinja2 environment of the HTML pages: what comes from data is escaped, only templates are trusted."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from assay.report import numerals
from assay.report.intervals import HEIGHT, WIDTH, holds_where
from assay.report.runs import tally_words

# Verdicts are told by sign and word as well as by colour.
SIGNS = {"holds": "✓", "fails": "✗", "inconclusive": "?", "not testable": "–"}
_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Fill a template in; a name that it wants and does not get is an error."""
    return _environment().get_template(template).render(**context)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals |= {
        "assay_version": importlib.metadata.version("assay"),
        "signs": SIGNS,
        "strip_width": WIDTH,
        "strip_height": HEIGHT,
        "style": Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        # The page may run this one script and load nothing.
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'",
        "holds_where": holds_where,
        "tally_words": tally_words,
    }
    environment.filters |= {
        "number": numerals.number,
        "interval": numerals.interval,
        "probability": numerals.probability,
        "percent": numerals.percent,
        "measured": numerals.measured,
        "duration": numerals.duration,
        "moment": numerals.moment,
        "count": numerals.count,
        "path": lambda name: quote(str(name)),
    }
    return environment
