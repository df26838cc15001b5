"""Exports of a package that are imported on first use, so that importing a method's commands loads nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """The module-level `__getattr__` (PEP 562) of a package with lazy exports.

    Args:
        package: the package's `__name__`.
        exports: public name -> the submodule that defines it, relative to the package.
    """

    def get(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{exports[name]}"), name)

    return get
