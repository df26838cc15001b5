"""Lazy exports: light until used, and one clear line when a package is missing."""

import sys

import pytest

from assay.errors import MissingDependencyError
from assay.lazy import lazy_exports


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "works.py").write_text("value = 42\n")
    (folder / "needs.py").write_text("import no_such_library.part\nvalue = 1\n")
    (folder / "broken.py").write_text("import lazy_example.no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lazy_exports(
        "lazy_example", {"value": "works", "needy": "needs", "broken": "broken"}, extra="regression"
    )
    for name in [name for name in sys.modules if name.startswith("lazy_example")]:
        del sys.modules[name]


def test_an_export_is_imported_on_first_use(package):
    assert "lazy_example.works" not in sys.modules
    assert package("value") == 42
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        package("other")


def test_a_missing_library_names_the_extra(package):
    message = r"lazy_example\.needy needs no_such_library; get it with: pip install 'assay\[regression\]'"
    with pytest.raises(MissingDependencyError, match=message):
        package("needy")


def test_a_missing_module_of_the_package_itself_is_a_defect(package):
    with pytest.raises(ModuleNotFoundError, match=r"lazy_example\.no_such_module"):
        package("broken")


@pytest.mark.parametrize("name", ["desi", "lp_stability"])
def test_methods_export_what_they_promise(name):
    module = __import__(f"assay.methods.{name}", fromlist=["__all__"])
    for export in module.__all__:
        assert getattr(module, export) is not None
