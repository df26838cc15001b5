"""assay: new machine-learning methods as real software, each with the study that tests its claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay import plugins

if TYPE_CHECKING:
    from assay.registry import Card

__all__ = ["__version__", "methods"]
__version__ = "0.1.0"


def methods() -> dict[str, Card]:
    """The card of every installed method, by name."""
    from assay.registry import cards

    return cards()


plugins.install()
