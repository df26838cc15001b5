"""Files and pages as plain text: text, Markdown, reStructuredText, HTML, PDF, Word and source code (ours).

What is read becomes the snapshot in which evidence has its place, so it is cleaned here and never again.
"""

from __future__ import annotations

import codecs
import io
import logging
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import require
from assay.methods.dualgraph.markup import without_markdown, without_rst
from assay.methods.dualgraph.safety import clean

# What a reader will not go beyond. A damaged or hostile file must not fill the memory.
MAX_BYTES = 50 * 2**20
_MAX_UNPACKED = 300 * 2**20
_MAX_PAGES = 5000
_MAX_SIFTED = 3 * 2**20  # characters of HTML; of larger pages all text is taken, which takes less time
# A damaged file makes a parser stumble in many ways; in each of them the file has no text for us.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)

_CODE = """.py .pyi .c .h .cc .cpp .cxx .hh .hpp .hxx .cu .cuh .java .kt .scala .go .rs .js .mjs .jsx .ts .tsx
    .cs .swift .m .mm .rb .php .pl .pm .lua .r .jl .f .f90 .f95 .hs .ml .mli .ex .exs .erl .clj .sql .sh .bash
    .zsh .ps1 .cmake .proto .thrift .vim .el .lisp .scm .zig .nim .d .dart .v .vhd .sv"""
_SUFFIXES = {
    "text": ".txt .text .log .adoc .asciidoc .org .tex",
    "markdown": ".md .markdown .mdown .qmd .rmd",
    "rst": ".rst .rest",
    "html": ".html .htm .xhtml",
    "pdf": ".pdf",
    "docx": ".docx",
    "code": _CODE,
}
KINDS = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_NAMES = {
    "text": "readme license licence copying changes changelog authors news notice todo",
    "code": "makefile dockerfile",
}
_KINDS_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_CONTENT_TYPES = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/markdown": "markdown",
    "text/x-rst": "rst",
    "text/plain": "text",
}


class Unreadable(ValueError):
    """This file or page cannot be turned into text; the message is the reason, in a few words."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """What a reader makes of a file.

    Attributes:
        text: the cleaned text.
        title: the title that the file gives itself, or "".
        pages: for paged files, the character offset at which every page starts.
    """

    text: str
    title: str = ""
    pages: tuple[int, ...] = ()


def kind_of(path: Path) -> str | None:
    """The kind of a file by its name: text, markdown, rst, html, pdf, docx or code; None for others."""
    suffix = path.suffix.lower()
    return KINDS.get(suffix) if suffix else _KINDS_BY_NAME.get(path.name.lower())


def kind_of_page(content_type: str, address: str) -> str:
    """The kind of a page by its `Content-Type`, or by its address where that says nothing of use.

    Raises:
        Unreadable: a page of another kind (an image, a video, an archive).
    """
    media = content_type.partition(";")[0].strip().lower()
    by_name = kind_of(Path(re.sub(r"[?#].*", "", address)))
    if media == "text/plain" and by_name in ("markdown", "rst", "code"):
        return by_name
    if media in _CONTENT_TYPES:
        return _CONTENT_TYPES[media]
    if media in ("", "application/octet-stream"):
        return by_name or "html"
    if media.startswith("text/") or media in ("application/json", "application/xml"):
        return "text"
    raise Unreadable(f"content type {media}")


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> ReadFile:
    """The text of a file.

    Raises:
        Unreadable: another kind of file, too large, encrypted, damaged, binary, or without text.
    """
    kind = kind_of(path)
    if kind is None:
        raise Unreadable(f"not a supported kind ({path.suffix or 'no suffix'})")
    try:
        if not path.is_file():
            raise Unreadable("not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from error
    if len(data) > max_bytes:
        raise Unreadable(f"larger than {max_bytes / 2**20:.3g} MB")
    return read_bytes(data, kind)


def read_bytes(data: bytes, kind: str, *, charset: str | None = None) -> ReadFile:
    """The text of a file's content.

    Args:
        data: the content.
        kind: as of `kind_of`.
        charset: what the server says that the encoding is; tried before the others.

    Raises:
        Unreadable: see `read_file`.
    """
    if not data.strip():
        raise Unreadable("empty")
    if kind == "pdf":
        result = _read_pdf(data)
    elif kind == "docx":
        result = _read_docx(data)
    elif kind == "html":
        result = _read_html(data, charset)
    else:
        text = clean(_decoded(data, charset))
        title = ""
        if kind == "markdown":
            title, text = without_markdown(text)
        elif kind == "rst":
            title, text = without_rst(text)
        result = ReadFile(text, title)
    if not re.search(r"\w", result.text):
        raise Unreadable("no text in it")
    return result


_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _decoded(data: bytes, charset: str | None = None) -> str:
    """Text from bytes: by byte order mark, the given charset, UTF-8, and Windows-1252 at last."""
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if marked is None and b"\0" in data[:4096]:
        raise Unreadable("binary")
    for name in (marked, charset, "utf-8"):
        if name is None:
            continue
        try:
            text = data.decode(name)
        except (UnicodeError, LookupError):
            continue
        break
    else:
        text = data.decode("cp1252", errors="replace")
        if text.count("\ufffd") > len(text) // 100:
            raise Unreadable("binary")
    sample = text[:20_000]
    if len(re.findall("[\x00-\x08\x0e-\x1f]", sample)) > len(sample) // 100:
        raise Unreadable("binary")
    return text


_HIDDEN_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d]*[1-9])"
    r"|opacity\s*:\s*0(?![.\d]*[1-9])",
    re.IGNORECASE,
)
_NO_TEXT = (
    "script",
    "style",
    "noscript",
    "template",
    "iframe",
    "object",
    "svg",
    "head",
    "nav",
    "form",
    "footer",
)
_BLOCKS = """p div li dt dd h1 h2 h3 h4 h5 h6 tr table section article pre blockquote ul ol dl br hr main
    header aside figcaption caption"""


def _read_html(data: bytes, charset: str | None) -> ReadFile:
    """The main text of a page without what a reader would not see; all its text where no part stands out."""
    trafilatura: Any = require("trafilatura", extra="agents")
    html: Any = require("lxml.html", extra="agents")
    if charset is None:
        declared = re.search(rb"<meta[^>]+charset\s*=\s*[\"']?([\w-]+)", data[:4096], re.IGNORECASE)
        charset = declared[1].decode() if declared else None
    text = _decoded(data, charset)
    # lxml refuses text with an XML declaration.
    text = re.sub(r"\A\s*<\?xml[^>]*\?>", "", text)
    try:
        tree = html.document_fromstring(text)
    except (ValueError, html.etree.ParserError) as error:
        raise Unreadable("not HTML") from error
    for element in tree.xpath("//*[@style or @hidden or @aria-hidden='true']"):
        hidden = "hidden" in element.attrib or element.get("aria-hidden") == "true"
        if (hidden or _HIDDEN_STYLE.search(element.get("style", ""))) and element.getparent() is not None:
            element.drop_tree()
    titles = tree.xpath("//head/title") or tree.xpath("//h1")
    title = clean(" ".join(titles[0].text_content().split())) if titles else ""
    main = None
    if len(text) <= _MAX_SIFTED:
        page = html.tostring(tree, encoding="unicode")
        with _quiet("trafilatura"):
            main = trafilatura.extract(page, include_comments=False, favor_recall=True, include_tables=True)
    everything = _visible_text(tree)
    # Reference pages have little running text; where most of the page was taken for decoration, nothing was.
    if not main or len(main) < len(everything) // 4:
        main = everything
    return ReadFile(clean(main), title)


def _visible_text(tree: Any) -> str:
    for element in tree.xpath("|".join(f"//{name}" for name in _NO_TEXT)):
        if element.getparent() is not None:
            element.drop_tree()
    blocks = frozenset(_BLOCKS.split())
    parts: list[str] = []
    for event, element in _walk(tree):
        block = isinstance(element.tag, str) and element.tag in blocks
        if block:
            parts.append("\n")
        if event == "start" and isinstance(element.tag, str) and element.text:
            parts.append(element.text)
        if event == "end" and element.tail:
            parts.append(element.tail)
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _walk(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every element twice, at its start and at its end, in the order of the page, without recursion."""
    stack: list[tuple[str, Any]] = [("start", tree)]
    while stack:
        event, element = stack.pop()
        yield event, element
        if event == "start":
            stack.append(("end", element))
            stack.extend(("start", child) for child in reversed(element))


def _read_pdf(data: bytes) -> ReadFile:
    """The text layer of a PDF, page by page."""
    pypdf: Any = require("pypdf", extra="agents")
    with _quiet("pypdf"):
        try:
            reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
            if reader.is_encrypted and not reader.decrypt(""):
                raise Unreadable("encrypted PDF")
            if len(reader.pages) > _MAX_PAGES:
                raise Unreadable(f"PDF of more than {_MAX_PAGES} pages")
            texts = [clean(page.extract_text() or "") for page in reader.pages]
            title = str((reader.metadata or {}).get("/Title") or "")
        except Unreadable:
            raise
        except pypdf.errors.DependencyError as error:
            raise Unreadable("encrypted PDF (its cipher needs the package cryptography)") from error
        except (pypdf.errors.PyPdfError, *_DAMAGE) as error:
            raise Unreadable(f"damaged PDF ({type(error).__name__})") from error
    if not any(re.search(r"\w", text) for text in texts):
        raise Unreadable("PDF without a text layer (scanned?)")
    pages, length = [], 0
    for text in texts:
        pages.append(length)
        length += len(text) + 2
    return ReadFile("\n\n".join(texts), clean(title.strip()), tuple(pages))


def _read_docx(data: bytes) -> ReadFile:
    """The paragraphs and tables of a Word document, in their order."""
    docx: Any = require("docx", extra="agents")
    etree: Any = require("lxml.etree", extra="agents")
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        raise Unreadable("encrypted or old Word document")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_UNPACKED:
                raise Unreadable(f"unpacks to more than {_MAX_UNPACKED // 2**20} MB")
        document = docx.Document(io.BytesIO(data))
        blocks = []
        for block in document.iter_inner_content():
            if isinstance(block, docx.table.Table):
                rows = ("\t".join(cell.text.replace("\n", " ") for cell in row.cells) for row in block.rows)
                blocks.append("\n".join(rows))
            else:
                blocks.append(block.text)
        title = document.core_properties.title or ""
    except Unreadable:
        raise
    except (zipfile.BadZipFile, etree.LxmlError, docx.exceptions.PythonDocxError, *_DAMAGE) as error:
        raise Unreadable(f"damaged Word document ({type(error).__name__})") from error
    return ReadFile(clean("\n\n".join(block for block in blocks if block.strip())), clean(title.strip()))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence the complaints of a library about a file: the file's own line says what is wrong."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
