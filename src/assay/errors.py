"""The errors that a user can act on.

The command line prints the message of an `InputError` or a `MissingDependencyError` as one line and exits
with code 2; every other exception is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """Something that the user passed is wrong; the message names the value and the remedy."""


class MissingDependencyError(ImportError):
    """A package that this call needs is not installed; the message holds the command that installs it."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of assay brings it.

    Raises:
        MissingDependencyError: the module cannot be found; the message names `extra`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{error.name or module} is not installed; get it with: pip install 'assay[{extra}]'"
        ) from error
