"""The Markdown of a report as safe HTML, whose citation markers open their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from assay.methods.dualgraph.citations import claims
from assay.methods.dualgraph.markers import find_markers
from assay.methods.dualgraph.records import CitationRow
from assay.methods.dualgraph.references import ListedReference, written_address

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


@dataclass
class _Cited:
    """The citations that are still to come: (numbers, sentence) in the order of the text."""

    waiting: list[tuple[tuple[int, ...], str]]
    references: Mapping[int, ListedReference]
    evidence: Mapping[str, Sequence[int]]
    by_sentence: Mapping[tuple[str, str], Sequence[int]]

    def sentence(self, numbers: tuple[int, ...]) -> str:
        """The sentence of the next marker with these numbers; "" where none is left."""
        for i, (ids, sentence) in enumerate(self.waiting):
            if ids == numbers:
                del self.waiting[: i + 1]
                return sentence
        return ""


def report_html(
    body: str,
    references: Mapping[int, ListedReference],
    evidence: Mapping[str, Sequence[int]],
    rows: Sequence[CitationRow],
) -> str:
    """HTML of a report's body: headings one level lower, nothing that loads or runs, markers as links.

    Args:
        body: the Markdown without its title and without its references.
        references: the references by number.
        evidence: the cited ids of evidence by address.
        rows: the checked citations, which say what a sentence cites of an address.
    """
    by_sentence: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.status == "supported":
            by_sentence.setdefault((row.sentence, written_address(row.url)), []).append(row.evidence_id)
    waiting = [(claim.ids, claim.sentence) for claim in claims(body)]
    cited = _Cited(waiting, references, evidence, by_sentence)
    return _markdown().render(body, {"cited": cited})


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Without links, images, HTML and definitions of addresses: a source comes from the list of references.
    # Without joining, an escaped bracket is a token of its own, and no part of a marker.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.disable(["link", "image", "autolink", "reference", "html_block", "html_inline", "text_join"])
    markdown.add_render_rule("text", _text)
    markdown.add_render_rule("text_special", _text)
    markdown.add_render_rule("heading_open", _heading)
    markdown.add_render_rule("heading_close", _heading)
    return markdown


def _heading(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    level = min(6, int(token.tag[1]) + 1)
    return f"<h{level}>" if token.nesting == 1 else f"</h{level}>\n"


def _text(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    content = tokens[index].content
    pieces, at = [], 0
    for marker in find_markers(content):
        pieces.append(escape(content[at : marker.start]))
        pieces.append(_links(marker.ids, env["cited"]))
        at = marker.end
    return "".join([*pieces, escape(content[at:])])


def _links(numbers: tuple[int, ...], cited: _Cited) -> str:
    sentence = cited.sentence(numbers)
    links = []
    for number in numbers:
        reference = cited.references.get(number)
        if reference is None:
            links.append(f'<span class="dangling" title="There is no reference {number}">{number}</span>')
            continue
        ids = cited.by_sentence.get((sentence, reference.url)) or cited.evidence.get(reference.url, ())
        data = f' data-evidence="{" ".join(str(i) for i in dict.fromkeys(ids))}"' if ids else ""
        label = escape(f"Source {number}: {reference.title}", quote=True)
        names = f'aria-label="{label}" title="{label}"'
        links.append(f'<a class="cite" href="#reference-{number}"{data} {names}>{number}</a>')
    return f'<span class="cites">{" ".join(links)}</span>'
