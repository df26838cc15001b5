"""Lists of references as people and models write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.dualgraph.references import parse_report, readable_address, safe_link


def found(text: str) -> dict[int, tuple[str, str]]:
    return {number: (r.title, r.url) for number, r in parse_report(text).references.items()}


@pytest.mark.parametrize(
    ("entry", "title", "url"),
    [
        ("[1] The first, p. 3. <file:///a/b%20c.md>", "The first, p. 3", "file:///a/b%20c.md"),
        ("1. [Second](https://s.example/x) of 2020", "Second", "https://s.example/x"),
        ("- [1] Title: https://en.example/A_(b).", "Title", "https://en.example/A_(b)"),
        ("[1]: https://x.example/y", "https://x.example/y", "https://x.example/y"),
        ("[^1]: Foot (https://x.example/y), 2020", "Foot", "https://x.example/y"),
        ("1) docs/read me.md", "docs/read me.md", "me.md"),
        ("[1] A book, without an address", "A book, without an address", ""),
        ("[1] Over two\n    lines. https://x.example", "Over two lines", "https://x.example"),
        (
            "[1] \\<https://evil.example\\> \\[x\\](https://evil.example). <https://x.example/y>",
            "<https://evil.example> [x](https://evil.example)",
            "https://x.example/y",
        ),
        ("[1] Bad <javascript:alert(1)>", "Bad", "javascript:alert(1)"),
    ],
)
@pytest.mark.parametrize(
    "heading", ["## References", "# Sources:", "**Bibliography**", "### 7. Quellen", "## 参考文献"]
)
def test_entries(heading, entry, title, url):
    parsed = parse_report(f"# R\n\nA fact [1].\n\n{heading}\n\n{entry}\n")
    assert parsed.body.strip() == "# R\n\nA fact [1]."
    assert [(r.number, r.title, r.url) for r in parsed.references.values()] == [(1, title, url)]


def test_text_after_the_list_belongs_to_the_report():
    parsed = parse_report("A [1].\n\n## References\n[1] x https://x.example\n\n## Annex\n\nB [1].\n")
    assert "B [1]." in parsed.body
    assert "x.example" not in parsed.body


def test_links_in_sentences_become_markers():
    text = (
        'A [rise of 12%](https://a.example/x_(y)) was seen ([source](https://b.example "t")). Again '
        "[there](https://a.example/x_(y)). ![image](https://c.example/i.png) stays, as [1] does.\n\n"
        "## References\n\n[1] One https://one.example\n"
    )
    parsed = parse_report(text)
    assert parsed.body.startswith("A rise of 12% [2] was seen [3]. Again there [2].")
    assert found(text) == {
        1: ("One", "https://one.example"),
        2: ("rise of 12%", "https://a.example/x_(y)"),
        3: ("source", "https://b.example"),
    }


def test_a_link_to_a_listed_reference_is_that_reference():
    text = "See [one](https://one.example).\n\n## References\n\n[1] One https://one.example\n"
    assert parse_report(text).body.startswith("See one [1].")
    assert found(text) == {1: ("One", "https://one.example")}


def test_a_report_without_references():
    assert found("# Title\n\nNothing [3].") == {}
    assert found("") == {}


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="a [1]()<>:#.\nhttps/REFrenc", max_size=80))
def test_any_text_can_be_taken_apart(text):
    parsed = parse_report(f"{text}\n\n## References\n\n{text}")
    assert all(number == reference.number for number, reference in parsed.references.items())


def test_addresses_for_readers():
    assert readable_address("file:///a/b%20c.md") == "/a/b c.md"
    assert readable_address("https://x.example/y/") == "x.example/y"
    assert readable_address("docs/a.md") == "docs/a.md"
    assert safe_link("https://x.example") == "https://x.example"
    for bad in (
        "javascript:alert(1)",
        "data:text/html,x",
        "docs/a.md",
        "//x.example",
        "",
        "http://[::1",
        "vbscript:x",
    ):
        assert safe_link(bad) == ""
