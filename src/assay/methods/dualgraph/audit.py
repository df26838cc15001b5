"""The audit of a finished report, ours or anybody's: every citation against its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from assay.errors import InputError
from assay.methods.dualgraph.checkers import Checker
from assay.methods.dualgraph.citations import check_claims, claims, effective, precision
from assay.methods.dualgraph.readers import Unreadable, read_file
from assay.methods.dualgraph.records import CitationRow, Document, ReadFailed
from assay.methods.dualgraph.references import ListedReference, parse_report, written_address
from assay.methods.dualgraph.research_run import ResearchRun
from assay.methods.dualgraph.run_folder import REPORT

_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class Audit:
    """What the check of a report's citations found.

    Attributes:
        rows: a row for every checked citation, in order; `evidence_id` is the number in the report.
        unread: why a source could not be read, by its number; its citations are in no row.
        unchecked: how many citations name only such sources.
    """

    rows: list[CitationRow]
    unread: dict[int, str] = field(default_factory=dict)
    unchecked: int = 0

    @property
    def precision(self) -> float | None:
        """The share of the checked citations that hold; None where there are none."""
        return precision(self.rows)

    @property
    def effective(self) -> int:
        """Citations that hold, each pair of a source and a sentence once."""
        return effective(self.rows)

    @property
    def faults(self) -> list[CitationRow]:
        """The citations that don't hold."""
        return [row for row in self.rows if row.status != "supported"]


def audit_run(folder: Path, checker: Checker) -> Audit:
    """Check the report.md of a run folder, as it is now, against the pages that the run stored.

    A number is checked against the snapshot of its address, or against all where several were stored.

    Raises:
        InputError: the folder has no run, or its run has not written a report.
    """
    run = ResearchRun.load(folder)
    path = folder / REPORT
    text = _read_report(path) if path.is_file() else run.report
    if not text:
        raise InputError(f"the run in {folder} has written no report yet: go on with `run --resume`")
    stored: dict[str, list[str]] = {}
    for piece in run.evidence.values():
        page = run.documents[piece.sha256].text
        pages = stored.setdefault(written_address(piece.source_url), [])
        if page not in pages:
            pages.append(page)
    return _audit(text, lambda reference: stored.get(reference.url, []), checker)


def audit_report(
    path: Path,
    checker: Checker,
    *,
    docs: Sequence[Path] = (),
    fetch: Callable[[str], Document] | None = None,
) -> Audit:
    """Check any Markdown report.

    A source that is a file is read if it lies in the report's folder or in one of `docs`; where only its name
    is given, it is looked for in these. A page of the web is fetched if `fetch` is given.

    Args:
        path: the report.
        checker: gives the scores.
        docs: folders with the sources.
        fetch: reads a page, for example `Fetcher().fetch`.

    Raises:
        InputError: the report or a folder cannot be read.
    """
    text = _read_report(path)
    for folder in docs:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder of documents")
    folders = [folder.resolve() for folder in (path.parent, *docs)]

    def read(reference: ListedReference) -> list[str] | str:
        if not reference.url:
            return "the reference has no address"
        if urlsplit(reference.url).scheme in ("http", "https"):
            if fetch is None:
                return "a page of the web, which is read only when asked for"
            try:
                return [fetch(reference.url).text]
            except ReadFailed as error:
                return str(error)
        file = _find(reference.url, folders)
        if file is None:
            return f"no file {reference.url} in {', '.join(str(folder) for folder in folders)}"
        try:
            return [read_file(file).text]
        except (Unreadable, OSError) as error:
            return str(error)

    return _audit(text, read, checker)


def _read_report(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8 (byte {error.start})") from error


def _find(address: str, folders: Sequence[Path]) -> Path | None:
    """The file of an address inside one of the folders; no other file is ever opened."""
    parts = urlsplit(address)
    name = unquote(parts.path) if parts.scheme == "file" else unquote(address.split("#", 1)[0])
    if "\0" in name:
        return None
    for folder in folders:
        file = (folder / name).resolve()
        if file.is_relative_to(folder) and file.is_file():
            return file
    for folder in folders[1:]:
        found = sorted(folder.rglob(escape(Path(name).name))) if Path(name).name else []
        inside = [file for file in found if file.is_file() and file.resolve().is_relative_to(folder)]
        if len(inside) == 1:
            return inside[0]
    return None


def _audit(text: str, read: Callable[[ListedReference], list[str] | str], checker: Checker) -> Audit:
    parsed = parse_report(text)
    found = claims(parsed.body)
    cited = {number for claim in found for number in claim.ids}
    sources: dict[int, list[str]] = {}
    unread: dict[int, str] = {}
    for number, reference in sorted(parsed.references.items()):
        if number in cited:
            got = read(reference)
            if isinstance(got, str):
                unread[number] = got
            else:
                sources[number] = got
    checkable = [
        replace(claim, ids=tuple(i for i in claim.ids if i not in unread))
        for claim in found
        if any(i not in unread for i in claim.ids)
    ]
    urls = {number: reference.url for number, reference in parsed.references.items()}
    rows = check_claims(checkable, sources, urls, checker=checker)
    sections = _sections(parsed.body, [claim.marker[0] for claim in checkable for _ in claim.ids])
    rows = [replace(row, section=section) for row, section in zip(rows, sections, strict=True)]
    return Audit(rows, unread, sum(len(claim.ids) for claim in found) - len(rows))


def _sections(body: str, places: Sequence[int]) -> list[str]:
    """The heading above every place; "" before the first."""
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(body)]
    return [next((title for start, title in reversed(headings) if start < place), "") for place in places]
