"""The page's text: everything is there, and what comes from outside is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from assay.methods.dualgraph.page import write_page
from assay.methods.dualgraph.records import ResearchConfig
from assay.methods.dualgraph.references import ListedReference
from assay.methods.dualgraph.report_html import report_html
from assay.methods.dualgraph.research_run import ResearchRun
from assay.methods.dualgraph.state import RunState


class Elements(HTMLParser):
    """Every start tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_hostile_text_stays_text(page):
    elements = Elements(page)
    assert len(elements.all("script")) == 1
    assert elements.all("img") == []
    assert [a for _, attributes in elements.found for a in attributes if a.startswith("on")] == []
    assert "&lt;script&gt;document.title=" in page
    assert "<script>document.title" not in page


def test_only_addresses_that_are_safe_become_links(page):
    targets = [a["href"] for a in Elements(page).all("a")]
    outside = {target for target in targets if not target.startswith("#")}
    assert outside == {"https://birds.example/kestrel", "file:///birds/harrier%20notes.txt"}
    for attributes in Elements(page).all("a"):
        if not attributes["href"].startswith("#"):
            assert {"noopener", "nofollow", "noreferrer"} <= set(attributes["rel"].split())


def test_nothing_is_loaded(page):
    for tag, attributes in Elements(page).found:
        assert "src" not in attributes, tag
        if tag == "link":
            assert attributes["href"] == "data:,"
    assert "url(" not in page
    assert "@import" not in page
    policy = next(
        a["content"] for a in Elements(page).all("meta") if "Content-Security" in str(a.get("http-equiv"))
    )
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


def test_every_mark_leads_to_something(page):
    elements = Elements(page)
    ids = [a["id"] for _, a in elements.found if a.get("id")]
    assert len(ids) == len(set(ids))
    inside = {a["href"][1:] for a in elements.all("a") if a["href"].startswith("#")}
    assert inside <= set(ids)
    named = {f"evidence-{i}" for _, a in elements.found for i in (a.get("data-evidence") or "").split()}
    assert named <= set(ids)


def test_the_page_shows_the_run(page, made_run):
    text = re.sub(r"<[^>]+>", " ", page)
    for wanted in (
        "67% of 6",  # four of six citations hold
        "page 3",
        "looks like an instruction to a model",
        "quoted from a source",
        "2 results could not be read",
        "1 failed judge",
        "unknown",
        "9 of 12 months",
        "structural hole",
    ):
        assert wanted in text, wanted
    for node in made_run.kg.nodes:
        assert f'id="node-{node}"' in page


def test_a_citation_opens_what_its_sentence_cites(page):
    links = [
        a for a in Elements(page).all("a") if a.get("class") == "cite" and a["href"].startswith("#reference")
    ]
    # Both sentences cite the first address, each another passage of it.
    assert [(a["href"], a["data-evidence"]) for a in links] == [
        ("#reference-1", "1"),
        ("#reference-1", "2"),
        ("#reference-2", "4"),
        ("#reference-3", "3"),
    ]


def test_an_empty_run_has_a_page(tmp_path):
    run = ResearchRun(RunState("What is known?", ResearchConfig(policy="linear"), status="budget"), [], None)
    write_page(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "no knowledge graph" in page
    assert "The run has no outline" in page
    assert "ended early" in page
    assert Elements(page).all("svg") == []


REFERENCES = {
    1: ListedReference(1, "One", "https://one.example"),
    2: ListedReference(2, "Two", "https://two.example"),
}


def html(body: str) -> str:
    return report_html(body, REFERENCES, {"https://one.example": [5, 6]}, [])


@pytest.mark.parametrize(
    ("markdown", "wanted"),
    [
        ("A [1].", 'data-evidence="5 6"'),
        ("A [9].", 'class="dangling"'),
        ("`argv[1]`", "<code>argv[1]</code>"),
        ("A \\[1\\].", "A [1]."),
        ("# T", "<h2>T</h2>"),
        ("###### T", "<h6>T</h6>"),
        ("| a | b |\n|---|---|\n| 1 | 2 [1] |", "<table>"),
        ("**b**", "<strong>b</strong>"),
    ],
)
def test_markdown(markdown, wanted):
    assert wanted in html(markdown)


@pytest.mark.parametrize(
    "markdown",
    [
        "[a](https://evil.example)",
        "![a](https://evil.example/x.png)",
        "<https://evil.example>",
        "[a][b]\n\n[b]: https://evil.example",
        "<img src=x onerror=alert(1)>",
        "<div onclick='x'>\n\ny</div>",
        "<!-- x --><script>alert(1)</script>",
    ],
)
def test_markdown_that_would_load_or_run_is_text(markdown):
    made = html(markdown)
    assert Elements(made).all("a") == []
    assert {tag for tag, _ in Elements(made).found} <= {"p"}
