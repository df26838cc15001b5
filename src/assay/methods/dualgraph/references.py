"""The references of a Markdown report, ours or anybody's: numbered lists, footnotes, links in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_TITLES = (
    "references|sources|bibliography|works cited|citations|links|quellen|literatur|literaturverzeichnis|"
    "références|bibliographie|referencias|fuentes|fonti|参考文献|参考资料|来源"
)
_HEADING = re.compile(
    rf"^(?:#{{1,6}}\s*(?:\d+[.)]?\s*)?|\*\*)(?:{_TITLES})(?:\*\*)?\s*:?\s*(?:\*\*)?\s*#*\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_ENTRY = re.compile(r"^[ \t]*(?:[-*+][ \t]+)?(?:\[\^?(\d{1,9})\]:?|(\d{1,9})[.)])[ \t]+(?=\S)", re.MULTILINE)
_FOOTNOTE = re.compile(r"^[ \t]{0,3}\[\^?(\d{1,9})\]:[ \t]+(\S.*)$", re.MULTILINE)
# Brackets inside an address come in pairs.
_PAIRED = r"(?:[^()\s<>]|\([^()\s<>]*\))+"
_ADDRESS = re.compile(
    rf"<([a-z][a-z0-9+.-]*:[^>\s]+)>|\]\(\s*<?({_PAIRED})>?[^)]*\)|((?:https?|file)://[^\s<>\"]+)",
    re.IGNORECASE,
)
# An address in angle brackets at the end is the entry's own, whatever its words contain.
_LAST_ADDRESS = re.compile(r"(?<!\\)<([a-z][a-z0-9+.-]*:[^<>\s]*)>\s*\.?\s*$", re.IGNORECASE)
_LINK = re.compile(
    r"(?<![!\\])(\(\s*)?\[((?:\\.|[^\]\\\[])+)\]"
    rf"\(\s*<?((?:https?|file)://{_PAIRED})>?(?:\s+\"[^\"]*\")?\s*\)(\s*\))?",
    re.IGNORECASE,
)
_FILE = re.compile(r"[^\s<>()\[\]\"']+\.[A-Za-z][A-Za-z0-9]{0,4}\b")


@dataclass(frozen=True)
class ListedReference:
    """An entry of a list of references: its number, its words, and its address ("" where it has none)."""

    number: int
    title: str
    url: str


@dataclass(frozen=True)
class ParsedReport:
    """A report with its references taken apart.

    Attributes:
        body: the text before the references, with links turned into markers `[n]`.
        references: by number.
    """

    body: str
    references: dict[int, ListedReference]


def parse_report(text: str) -> ParsedReport:
    """Take the references of a Markdown report apart.

    Understood are a list under a heading such as "References" or "Sources" (`[1] ...`, `1. ...`), definitions
    (`[1]: URL`, `[^1]: ...`) anywhere, and links in sentences, which become markers with new numbers.
    """
    headings = list(_HEADING.finditer(text))
    body, listed = text, ""
    if headings:
        body, listed = text[: headings[-1].start()], text[headings[-1].end() :]
        # What follows the list under a heading of its own belongs to the report.
        if after := re.search(r"^#{1,6}\s+\S", listed, re.MULTILINE):
            body, listed = body + listed[after.start() :], listed[: after.start()]
    references = _listed(listed)
    for match in _FOOTNOTE.finditer(body):
        number = int(match[1])
        references.setdefault(number, ListedReference(number, *_title_and_url(match[2])))
    body = _FOOTNOTE.sub("", body)
    by_url = {reference.url: number for number, reference in references.items() if reference.url}

    def marker(match: re.Match[str]) -> str:
        words, url = match[2], match[3]
        if url not in by_url:
            number = max(references, default=0) + 1
            by_url[url] = number
            references[number] = ListedReference(number, words, url)
        # "([source](URL))" is a marker; "the [annual report](URL)" is words of the sentence and a marker.
        enclosed = match[1] is not None and match[4] is not None
        before, after = ("", "") if enclosed else (f"{match[1] or ''}{words} ", match[4] or "")
        return f"{before}[{by_url[url]}]{after}"

    return ParsedReport(_LINK.sub(marker, body), references)


def _listed(text: str) -> dict[int, ListedReference]:
    entries = list(_ENTRY.finditer(text))
    found: dict[int, ListedReference] = {}
    for i, entry in enumerate(entries):
        number = int(entry[1] or entry[2])
        end = entries[i + 1].start() if i + 1 < len(entries) else len(text)
        content = text[entry.end() : end].strip()
        # An entry goes on over line breaks, not over a blank line.
        found.setdefault(number, ListedReference(number, *_title_and_url(re.split(r"\n\s*\n", content)[0])))
    return found


def _title_and_url(text: str) -> tuple[str, str]:
    if last := _LAST_ADDRESS.search(text):
        return _title(text[: last.start()]) or last[1], last[1]
    address = _ADDRESS.search(text)
    if address is None:
        path = _FILE.search(text)
        return " ".join(text.split()), path[0] if path else ""
    url = next(part for part in address.groups() if part)
    if address[3]:
        url = url.rstrip(".,;:!?*_")
        # A bracket that was not opened in the address closes one of the sentence.
        while url.endswith(")") and url.count("(") < url.count(")"):
            url = url[:-1]
    before = text[: address.start()]
    return _title(re.sub(r"[\[\]]", "", before) if address[2] else before) or url, url


def _title(text: str) -> str:
    """The words before an address, without escapes and without what leads over to it."""
    shown = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", " ".join(text.split()))
    return shown.rstrip(" .:—–-*_<(")


def written_address(url: str) -> str:
    """An address as a list of references writes it between angle brackets."""
    return url.replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")


def readable_address(url: str) -> str:
    """An address as a reader wants it: a path for a file, without the scheme for a page."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path)
    return url.split("://", 1)[-1].rstrip("/") if parts.scheme in ("http", "https") else url


def safe_link(url: str) -> str:
    """The address if a page may link to it (http, https, file), else ""."""
    try:
        return url if urlsplit(url).scheme.lower() in ("http", "https", "file") else ""
    except ValueError:
        return ""
