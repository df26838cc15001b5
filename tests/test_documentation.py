"""The documentation says what is: generated parts are up to date, examples run, every method can be found."""

import importlib
import pkgutil
import re
import shutil
from pathlib import Path

import pytest

from assay.registry import cards
from assay.report import write_markdown

ROOT = Path(__file__).parent.parent
OURS = sorted(card.name for card in cards().values() if card.distribution == "assay")
METHODS = [name for name in OURS if not cards()[name].preview]


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_scoreboards_are_those_of_the_published_results(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    for name in ("README.md", "docs/results/index.md"):
        shutil.copy(ROOT / name, tmp_path / name)
        write_markdown(tmp_path / "docs" / "results", tmp_path / name)
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), f"{name}: run `make results`"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_results_and_can_be_found(name):
    folder = ROOT / "docs" / "results" / name
    for file in ("index.md", "study.json", "verdicts.json"):
        assert (folder / file).is_file(), file
    card = cards()[name]
    assert f"methods/{name}/README.md" in (ROOT / "README.md").read_text()
    assert f"assay {card.command} " in (ROOT / "README.md").read_text()
    assert f"methods/{name}.md" in (ROOT / "docs" / "index.md").read_text()
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (f"methods/{name}.md", f"reference/{name}.md", f"results/{name}/index.md"):
        assert page in nav


@pytest.mark.parametrize("path", ["README.md", *(f"src/assay/methods/{name}/README.md" for name in OURS)])
def test_examples_run(path):
    blocks = python_blocks(ROOT / path)
    assert blocks
    for block in blocks:
        exec(compile(block, path, "exec"), {})


def test_previews_are_named_as_such():
    readme = (ROOT / "README.md").read_text()
    for name in sorted(set(OURS) - set(METHODS)):
        preview = readme[readme.index("In preview") :]
        assert f"methods/{name}/README.md" in preview
        assert not (ROOT / "docs" / "results" / name).exists()


@pytest.mark.parametrize("name", OURS)
def test_the_study_is_the_cards(name):
    study = cards()[name].load_study()
    assert study.method == name
    ids = [claim.id for claim in study.claims]
    assert len(set(ids)) == len(ids)
    arms = {trial.arm for trial in study.trials("quick", None)}
    for claim in study.claims:
        assert set(claim.arms()) <= arms, f"{claim.id} speaks of an arm that the quick scale does not run"
    assert list(study.trials("smoke", None))
    assert list(study.trials("full", 1))


@pytest.mark.parametrize("name", OURS)
def test_no_export_is_named_like_a_module(name):
    # Once the module is imported, it would hide the export of the same name.
    package = importlib.import_module(f"assay.methods.{name}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)
