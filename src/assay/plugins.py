"""Plug-ins for other libraries: a method's function is called once a module of theirs has been imported.

A method that extends another library (a quantizer of transformers, say) names the library's module and its
own function in its card, under `[on_import]`. `import assay` must stay light, so it imports neither: it puts
a finder in front of Python's import machinery that waits for the library's module. The cards are read when
something that belongs neither to the standard library nor to assay is imported for the first time.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# In every process before the user has imported anything: the interpreter's own and those of `pip install -e`.
_START_UP = ("__", "_distutils_hack", "_virtualenv", "sitecustomize", "usercustomize", "apport_python_hook")


class PostImportFinder:
    """A finder for `sys.meta_path` that calls functions after modules have been imported.

    Args:
        functions: module -> the functions, as `"module:function"`, that are called without arguments once
            the module has been imported. None reads them from the cards of all methods when they are first
            needed. A module of ours that is itself what imports the other library is not called: it can act
            at its own end.
    """

    def __init__(self, functions: Mapping[str, Sequence[str]] | None = None) -> None:
        self._functions = functions
        self._called: set[str] = set()
        self._lock = threading.RLock()
        self._reading = False

    def install(self) -> None:
        """Go to the front of the import machinery; act at once on what is imported already."""
        sys.meta_path.insert(0, self)
        if self._functions is not None or any(map(_foreign, list(sys.modules))):
            self._act_on_imported()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, its loader reporting the end of the import; None for all other modules."""
        if not _foreign(fullname):
            return None
        if self._functions is None:
            self._act_on_imported()
        if fullname in self._called or fullname not in (self._functions or {}):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _ReportingLoader(spec.loader, self)  # pyright: ignore[reportAttributeAccessIssue]
                return spec
        return None

    def imported(self, name: str) -> None:
        """Call what waits for the module, once. A function that fails leaves a warning and no error."""
        with self._lock:
            if name in self._called:
                return
            self._called.add(name)
        for function in (self._functions or {}).get(name, ()):
            module, _, attribute = function.partition(":")
            if _being_imported(module):
                continue
            try:
                getattr(importlib.import_module(module), attribute)()
            except Exception as error:
                warnings.warn(
                    f"assay could not extend {name} by {function}: {type(error).__name__}: {error}",
                    stacklevel=2,
                )

    def _act_on_imported(self) -> None:
        with self._lock:
            # Reading the cards imports modules itself.
            if self._functions is None and not self._reading:
                self._reading = True
                self._functions = _from_cards()
        for name in self._functions or {}:
            # While a module is being imported, its own loader reports the end.
            if name in sys.modules and not _being_imported(name):
                self.imported(name)


class _ReportingLoader:
    """A module's own loader, which also tells the finder when the module has been executed."""

    def __init__(self, loader: Any, finder: PostImportFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on everything that asks for the loader finds the module's own.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        # The import machinery does this after us; the functions may need it now.
        parent, _, child = module.__name__.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
        self._finder.imported(module.__name__)


def install() -> None:
    """Let the methods' plug-ins wait for the libraries that they extend; a second call does nothing."""
    if not any(isinstance(finder, PostImportFinder) for finder in sys.meta_path):
        PostImportFinder().install()


def _foreign(name: str) -> bool:
    """Whether a module belongs neither to the standard library nor to assay."""
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "assay" and not root.startswith(_START_UP)


def _being_imported(name: str) -> bool:
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)


def _from_cards() -> dict[str, list[str]]:
    from assay.registry import cards

    functions: dict[str, list[str]] = {}
    for card in cards().values():
        for module, function in card.on_import.items():
            functions.setdefault(module, []).append(function)
    return functions
