"""Finding methods: the cards in `assay/methods/*/card.toml` and those of other packages.

Another package adds a method with an entry point in the group `assay.methods` whose value is the package that
holds the method's `card.toml`. Nothing of a method is imported until it is used.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from assay.study import Study

ENTRY_POINTS = "assay.methods"


@dataclass(frozen=True)
class Card:
    """The facts about a method, as its `card.toml` states them.

    Args:
        name: a Python identifier; the command line writes it with hyphens.
        title: the name of the method for people.
        paper: title, venue and year of the paper.
        arxiv: its arXiv id, or an empty string.
        area: the field, e.g. "statistics".
        summary: what it does for a user, in one line.
        interface: the interface that it is offered in, e.g. "scikit-learn".
        extra: the extra of the distribution that brings what it needs.
        verbs: command -> `"module:function"`.
        study: `"module:attribute"` of its `Study`.
        distribution: the distribution that the extra belongs to.
        preview: the verbs work, and the study's results have not been published yet.
        on_import: module of another library -> `"module:function"` of the method, called once that module has
            been imported (see `assay.plugins`).
    """

    name: str
    title: str
    paper: str
    arxiv: str
    area: str
    summary: str
    interface: str
    extra: str
    verbs: Mapping[str, str]
    study: str
    distribution: str = "assay"
    preview: bool = False
    on_import: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The name on the command line."""
        return self.name.replace("_", "-")

    def load_study(self) -> Study:
        """Import the method's study."""
        module, _, attribute = self.study.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def missing_packages(self) -> list[str]:
        """The packages of the method's extra that are not installed."""
        return missing_packages(self.distribution, self.extra)

    def check_installed(self) -> None:
        """Raise `MissingDependencyError`, with the remedy, when a package of the extra is missing."""
        if missing := self.missing_packages():
            raise MissingDependencyError(
                f"{self.name} needs {', '.join(missing)}: pip install '{self.distribution}[{self.extra}]'"
            )


def cards() -> dict[str, Card]:
    """The cards of all methods by name, in alphabetical order.

    A card of another package that cannot be read is left out with a warning: it must not take the others
        down.
    """
    own = Path(__file__).parent / "methods"
    found = {card.name: card for card in map(read_card, sorted(own.glob("*/card.toml")))}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            spec = importlib.util.find_spec(point.value)
            folders = list(spec.submodule_search_locations or []) if spec else []
            if not folders:
                raise InputError(f"there is no package {point.value!r}")
            card = read_card(Path(folders[0]) / "card.toml")
            if card.name in found:
                raise InputError(f"the name {card.name!r} is taken")
            found[card.name] = card
        except (InputError, ImportError, OSError) as error:
            warnings.warn(f"method {point.name!r} is left out: {error}", stacklevel=2)
    return dict(sorted(found.items()))


def find_card(name: str) -> Card:
    """The card of a method, named with hyphens or underscores.

    Raises:
        InputError: there is no such method; the message suggests the nearest name.
    """
    found = cards()
    key = name.replace("-", "_")
    if key in found:
        return found[key]
    near = difflib.get_close_matches(key, found, n=1)
    hint = f"did you mean {found[near[0]].command!r}?" if near else "`assay list` shows the methods"
    raise InputError(f"there is no method {name!r}; {hint}")


def read_card(path: Path) -> Card:
    """Read and validate a `card.toml`.

    Raises:
        InputError: the file is not a card; the message names the field.
    """
    try:
        facts: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    known = {fact.name for fact in fields(Card)}
    required = {
        fact.name for fact in fields(Card) if fact.default is MISSING and fact.default_factory is MISSING
    }
    if missing := required - set(facts):
        raise InputError(f"{path}: the card lacks {', '.join(sorted(missing))}")
    if unknown := set(facts) - known:
        raise InputError(f"{path}: the card has unknown fields {', '.join(sorted(unknown))}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(facts["name"])):
        raise InputError(f"{path}: the name {facts['name']!r} is not a lower-case Python identifier")
    for key, kind in (("verbs", "verb"), ("on_import", "on_import")):
        for name, target in facts.get(key, {}).items():
            if not re.fullmatch(r"[\w.]+:\w+", str(target)):
                raise InputError(f"{path}: {kind} {name!r} must name 'module:function', not {target!r}")
    return Card(**facts)


def missing_packages(distribution: str, extra: str) -> list[str]:
    """The requirements of an extra that no installed distribution satisfies, with their version ranges."""
    from packaging.requirements import Requirement

    missing = []
    for text in importlib.metadata.requires(distribution) or []:
        requirement = Requirement(text)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name == distribution:
            for inner in sorted(requirement.extras):
                missing += missing_packages(distribution, inner)
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier}")
    return list(dict.fromkeys(missing))


def extras(distribution: str = "assay") -> list[str]:
    """The names of the extras that an installed distribution declares."""
    return sorted(importlib.metadata.metadata(distribution).get_all("Provides-Extra") or [])
