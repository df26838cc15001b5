"""The documentation of CMake as a corpus: real text, with relations that its authors marked.

The package `cmake` (BSD-3-Clause) carries 2367 pages of reStructuredText. They are read from the installed
package, which is located through its metadata and never imported. Gold relations are the pairs of documented
names that one paragraph cross-references; the extractor sees the text of a paragraph and not its markup.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from assay.cache import cached
from assay.data.embedded import EMBEDDED
from assay.errors import InputError, MissingDependencyError
from assay.files import write_json
from assay.methods.dualgraph.corpora import Corpus, Pair, Passage, pair

CMAKE = "cmake"
# Of the sorted names and contents of all pages, so that a study stands on the same text everywhere.
CMAKE_SHA256 = "368a258322bc117c44842a3e067f942055dab42d1208741e63dac6eb6a0ff8de"
LONGEST_LIST = 6
SHORTEST_PASSAGE = 40

# The folders of `Help` that document a name a page, and the role that refers to such a page.
_KINDS = (
    "command", "cpack_gen", "envvar", "generator", "module", "policy", "prop_cache", "prop_dir", "prop_gbl",
    "prop_inst", "prop_sf", "prop_test", "prop_tgt", "variable",
)  # fmt: skip
_TARGET = re.compile(rf":({'|'.join(_KINDS)}):`(?:[^`]*<([^`<>]+)>|([^`]+))`")
# What the extractor takes for a name: an identifier in which letters are joined or cased as no word is.
_IDENTIFIER = re.compile(
    r"\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b|\b[A-Z]{4,}\b"
)


@dataclass(frozen=True)
class Documentation:
    """The pages of CMake as passages, and which names they relate.

    Args:
        gold: pairs of documented names that one paragraph cross-references. Paragraphs with more than
            `LONGEST_LIST` names are indexes: nothing is read off them.
    """

    passages: tuple[Passage, ...]
    gold: frozenset[Pair]

    @functools.cached_property
    def neighbours(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for first, second in self.gold:
            found[first].add(second)
            found[second].add(first)
        return {name: frozenset(others) for name, others in found.items()}


@functools.cache
def documentation() -> Documentation:
    """CMake's documentation, parsed once and kept in the cache.

    Raises:
        MissingDependencyError: the package is not installed, or in another version.
        InputError: its pages are not the ones that this study stands on.
    """
    folder = cached("dualgraph-cmake", {"sha256": CMAKE_SHA256, "parser": 6}, _parse_documentation)
    stored = json.loads((folder / "documentation.json").read_text(encoding="utf-8"))
    passages = tuple(Passage(title, text, (frozenset(names),)) for title, text, names in stored["passages"])
    return Documentation(passages, frozenset((first, second) for first, second in stored["gold"]))


def _parse_documentation(folder: Path) -> None:
    pages = _pages()
    titles = {_title(text) for path, text in pages if path.split("/")[0] in _KINDS} - {""}
    # A graph knows names apart from letter case; of those that differ by it alone, one is enough.
    names = set({name.casefold(): name for name in sorted(titles)}.values())
    passages, gold, seen = [], set(), set()
    for path, text in pages:
        title = _title(text)
        for paragraph in _paragraphs(text):
            referenced = {_target_name(match) for match in _TARGET.finditer(paragraph)} & names
            # A passage is indexed once; many pages include the same paragraphs.
            plain = _plain(paragraph)
            mentioned = sorted(set(_IDENTIFIER.findall(plain)) & names)
            related = {name for name in referenced if name in mentioned}
            if len(mentioned) > LONGEST_LIST:
                mentioned = []
            elif len(related) >= 2:
                gold |= {pair(*two) for two in combinations(sorted(related), 2)}
            if len(plain) >= SHORTEST_PASSAGE and plain not in seen:
                seen.add(plain)
                passages.append((f"{path}: {title}", plain, mentioned))
    write_json(folder / "documentation.json", {"passages": passages, "gold": sorted(gold)})


def _target_name(match: re.Match[str]) -> str:
    return re.sub(r"\(.*?\)$", "", (match[2] or match[3]).split("#")[0]).strip()


def _pages() -> list[tuple[str, str]]:
    """Path below `Help` and text of every page, compared with the digest of the pages that the study uses."""
    package = EMBEDDED[CMAKE]
    try:
        distribution = metadata.distribution(CMAKE)
    except metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or distribution.version != package.version:
        raise MissingDependencyError(
            f"the pages of {CMAKE} {package.version} are not installed; get them with: {package.install}"
        )
    pages = []
    digest = hashlib.sha256()
    wanted = [file for file in distribution.files or () if file.suffix == ".rst" and "Help" in file.parts]
    for file in sorted(wanted, key=str):
        content = Path(str(distribution.locate_file(file))).read_bytes()
        path = "/".join(file.parts[file.parts.index("Help") + 1 :])
        digest.update(path.encode() + b"\0" + content + b"\0")
        pages.append((path, content.decode("utf-8")))
    if digest.hexdigest() != CMAKE_SHA256:
        raise InputError(
            f"the documentation of {CMAKE} differs from that of version {package.version}; install it again: "
            f"{package.install} --force-reinstall"
        )
    return pages


def _title(text: str) -> str:
    """The first line that is followed by a line of punctuation of its length, or an empty string."""
    lines = text.splitlines()
    for line, below in pairwise(lines):
        if line.strip() and re.fullmatch(r"([-=*^\"'~.])\1+", below.strip()) and not line.startswith(".."):
            return line.strip()
    return ""


def _paragraphs(text: str) -> Iterable[str]:
    """Blocks between blank lines, and items of lists; no directives, code or underlines of headings."""
    code_indent = None
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = None
        if re.match(r"\s*\.\. \|", lines[0]):
            # The definition of a substitution.
            continue
        if re.match(
            r"\s*\.\. (code-block|parsed-literal|productionlist|signature|contents|only)::", lines[0]
        ):
            code_indent = indent
            continue
        if lines[-1].rstrip().endswith("::"):
            code_indent = indent
        kept = [
            re.sub(r"^\s*\.\. \w+::\s*\S*", "", line)
            for line in lines
            if not re.fullmatch(r"\s*(?:([-=*^\"'~.])\1+\s*)+", line)
        ]
        # The items of a list stand on their own.
        for item in re.split(r"\n\s*[*-]\s+", "\n" + "\n".join(kept)):
            if item.strip():
                yield " ".join(item.split())


def _plain(paragraph: str) -> str:
    """The text that a reader sees: references and literals without their markup."""
    text = re.sub(r":[a-z_]+:`([^`<]+?)\s*<[^`]*>`", r"\1", paragraph)
    text = re.sub(r":[a-z_]+:`([^`]*)`", r"\1", text).replace("``", "").replace("**", "")
    return re.sub(r"\s+", " ", text.replace("\\", "")).strip(" *-|")


def question_about(documented: Documentation, seed: int) -> Corpus:
    """A question about three linked names; gold are the relations among them and their neighbours.

    The three are a name with 6 to 30 neighbours and two of its neighbours with at least 4, drawn by `seed`.
    """
    rng = np.random.default_rng([seed, 62])
    neighbours = documented.neighbours
    centres = sorted(name for name, others in neighbours.items() if 6 <= len(others) <= 30)
    linked: list[str] = []
    while len(linked) < 2:
        centre = centres[int(rng.integers(len(centres)))]
        linked = sorted(name for name in neighbours[centre] if len(neighbours[name]) >= 4)
    core = (centre, *(linked[i] for i in rng.permutation(len(linked))[:2]))
    target = set(core).union(*(neighbours[name] for name in core))
    gold = dict.fromkeys((two for two in sorted(documented.gold) if set(two) <= target), "linked")
    question = f"How do {core[0]}, {core[1]} and {core[2]} work together in CMake?"
    return Corpus(question, core, documented.passages, gold)
