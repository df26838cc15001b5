import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.cli import main

SUPPORT = Path(__file__).parent.parent / "study" / "support"

CARD = """
name = "example_method"
title = "An example"
paper = "An example, 2026"
arxiv = ""
area = "tests"
summary = "Does nothing."
interface = "functions"
extra = "regression"
study = "example_study:STUDY"

[verbs]
greet = "example_plugin.commands:greet"
"""

COMMANDS = """
from assay.errors import InputError

def greet(name: str) -> None:
    \"\"\"Greet somebody.\"\"\"
    if name == "nobody":
        raise InputError("nobody cannot be greeted: name somebody")
    if name == "missing":
        open("does-not-exist.csv")
    if name == "interrupt":
        raise KeyboardInterrupt
    if name == "bug":
        raise KeyError(name)
    print(f"hello {name}")
"""


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """Another distribution that adds the method `example_method` through an entry point."""
    site = tmp_path_factory.mktemp("site")
    package = site / "example_plugin"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "card.toml").write_text(CARD)
    (package / "commands.py").write_text(COMMANDS)
    info = site / "example_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.methods]\nexample_method = example_plugin\n")
    return site


class Done(NamedTuple):
    """What a command left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def assay(plugin, tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own, with the plugin installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments, path=(plugin, SUPPORT)):
        for folder in path:
            monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            return Done(int(end.code or 0), *capsys.readouterr())
        raise AssertionError("the command line did not exit")

    return run


@pytest.fixture
def refused(assay):
    """Run the command line with a mistake; it answers with one line and exit code 2. Returns the line."""

    def run(*arguments, **options):
        done = assay(*arguments, **options)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("assay: ")
        return done.stderr

    return run
