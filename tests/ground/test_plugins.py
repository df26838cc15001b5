"""Functions that run once a module of another library has been imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from assay import plugins
from assay.plugins import PostImportFinder
from assay.registry import read_card

CARD = """
name = "plugged"
title = "t"
paper = "p"
arxiv = ""
area = "a"
summary = "s"
interface = "i"
extra = "lm"
study = "m:S"
[verbs]
"""


@pytest.fixture
def library(tmp_path, monkeypatch) -> Iterator[str]:
    """A package `hooked_library` with a module `inner`, and a module `extending` with functions to call."""
    package = tmp_path / "hooked_library"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("ready = True\n")
    (package / "broken.py").write_text("raise RuntimeError('cannot be imported')\n")
    (tmp_path / "extending.py").write_text(
        "calls = []\n"
        "def extend():\n"
        "    import hooked_library.inner\n"
        "    calls.append(hooked_library.inner.ready)\n"
        "def fail():\n"
        "    raise KeyError('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield "hooked_library.inner"
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] in ("hooked_library", "extending")]:
        del sys.modules[name]


def calls() -> list[bool]:
    return importlib.import_module("extending").calls


def test_a_function_is_called_once_after_the_import(library):
    PostImportFinder({library: ["extending:extend"]}).install()
    assert "extending" not in sys.modules
    module = importlib.import_module(library)
    assert calls() == [True]
    importlib.import_module(library)
    importlib.reload(module)
    assert calls() == [True]


def test_the_module_keeps_its_own_loader(library):
    PostImportFinder({library: ["extending:extend"]}).install()
    module = importlib.import_module(library)
    assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert module.__spec__.origin == module.__file__


def test_a_module_that_is_imported_already_is_extended_at_once(library):
    importlib.import_module(library)
    PostImportFinder({library: ["extending:extend"]}).install()
    assert calls() == [True]


def test_a_module_that_imports_the_library_itself_acts_at_its_own_end(library, tmp_path):
    (tmp_path / "extending.py").write_text(
        "import hooked_library.inner\ncalls = []\ndef extend():\n    calls.append(True)\nextend()\n"
    )
    PostImportFinder({library: ["extending:extend"]}).install()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calls() == [True]


def test_a_function_that_fails_leaves_the_import_alone(library):
    PostImportFinder({library: ["extending:fail", "extending:extend", "extending:missing"]}).install()
    with pytest.warns(
        UserWarning, match=r"could not extend hooked_library\.inner by extending:fail: KeyError"
    ):
        module = importlib.import_module(library)
    assert module.ready
    assert calls() == [True]


def test_a_module_that_cannot_be_imported_raises_its_own_error(library):
    PostImportFinder({"hooked_library.broken": ["extending:extend"]}).install()
    with pytest.raises(RuntimeError, match="cannot be imported"):
        importlib.import_module("hooked_library.broken")
    assert calls() == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hooked_library.absent")


def test_functions_come_from_the_cards(library, monkeypatch, tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(CARD + '[on_import]\n"hooked_library.inner" = "extending:extend"\n')
    card = read_card(path)
    monkeypatch.setattr("assay.registry.cards", lambda: {"plugged": card})
    PostImportFinder().install()
    importlib.import_module(library)
    assert calls() == [True]


def test_a_card_without_plug_ins_has_none(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(CARD)
    assert read_card(path).on_import == {}


def test_a_bad_function_name_in_a_card_is_reported(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(CARD + '[on_import]\n"json" = "no function"\n')
    with pytest.raises(ValueError, match="on_import 'json' must name 'module:function'"):
        read_card(path)


def test_install_twice_leaves_one_finder():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugins.install()
        plugins.install()
    assert sum(isinstance(finder, PostImportFinder) for finder in sys.meta_path) == 1


def test_importing_assay_reads_no_cards_until_another_library_is_imported():
    script = (
        "import sys, assay; print('assay.registry' in sys.modules);"
        "import json, csv; print('assay.registry' in sys.modules);"
        "import packaging; print('assay.registry' in sys.modules)"
    )
    # -S: what `site` imports at start-up differs between machines.
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {paths!r}\n{script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False", "True"]
