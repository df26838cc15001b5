"""Exports that are imported on first use, so that importing a method's commands loads nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from assay.errors import MissingDependencyError


def lazy_exports(package: str, exports: Mapping[str, str], *, extra: str) -> Callable[[str], Any]:
    """The module-level `__getattr__` (PEP 562) of a package with lazy exports.

    Args:
        package: the package's `__name__`.
        exports: public name -> the submodule that defines it, relative to the package.
        extra: the extra of assay that brings what the submodules import; named when a package is missing.
    """

    def get(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{package}.{exports[name]}")
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing.split(".")[0] == package.split(".")[0]:
                raise
            raise MissingDependencyError(
                f"{package}.{name} needs {missing}; get it with: pip install 'assay[{extra}]'"
            ) from error
        return getattr(module, name)

    return get
