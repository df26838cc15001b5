import importlib
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture
def example(monkeypatch):
    """The module `example_study`; worker processes find it because they inherit the import path."""
    monkeypatch.syspath_prepend(str(SUPPORT))
    return importlib.import_module("example_study")
