"""Citations: what a marker belongs to, what is taken out, how references are numbered."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.dualgraph.checkers import LexicalChecker
from assay.methods.dualgraph.citations import (
    check_claims,
    check_section,
    claims,
    effective,
    precision,
    renumber,
)
from assay.methods.dualgraph.markers import (
    find_markers,
    plain_sentence,
    without_emphasis,
    without_links,
    without_markers,
)
from assay.methods.dualgraph.records import Evidence


def evidence(*entries: tuple[int, str, str]) -> dict[int, Evidence]:
    return {i: Evidence(i, f"Title {i}", url, text, (0, len(text)), "0" * 64, 1) for i, url, text in entries}


TOWER = evidence(
    (3, "https://a.example", "It was built in 1889 by Gustave Eiffel."),
    (4, "https://b.example", "Bridges carry trains over rivers."),
    (7, "https://a.example", "The tower is 330 metres tall."),
)


def check(text: str, admissible=(3, 4, 7)):
    return check_section(
        text, section="2", evidence=TOWER, admissible=set(admissible), checker=LexicalChecker()
    )


def test_numbering_by_address():
    """Acceptance check 9: ids [7], [3], [7], 3 and 7 at one address, are all [1], with one reference."""
    numbered = renumber("One [7]. Two [3]. Three [7].", TOWER)
    assert numbered.text == "One [1]. Two [1]. Three [1]."
    assert [(r.number, r.url, r.evidence) for r in numbered.references] == [(1, "https://a.example", (7, 3))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A [4]. B [7].", "A [1]. B [2]."),
        ("A [4, 7, 3].", "A [1, 2]."),
        ("A [3][7] and [4].", "A [1] and [2]."),
        ("A [3] [7].", "A [1]."),
        ("A [99]. B [4, 99].", "A. B [1]."),
        ("A 【3】 and [id_4].", "A [1] and [2]."),
        ("Nothing.", "Nothing."),
        ("`argv[3]` stays, [3] does not.", "`argv[3]` stays, [1] does not."),
        ("Escaped \\[3\\] stays.", "Escaped \\[3\\] stays."),
        ("A [link](https://x.example) [3](y)", "A [link](https://x.example) [3](y)"),
    ],
)
def test_numbering(text, wanted):
    assert renumber(text, TOWER).text == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from([3, 4, 7, 99]), min_size=1, max_size=3), max_size=8))
def test_references_are_numbered_by_first_appearance(groups):
    text = " ".join(f"Sentence {'abcdefgh'[i]} [{', '.join(map(str, ids))}]." for i, ids in enumerate(groups))
    numbered = renumber(text, TOWER)
    seen = [n for marker in find_markers(numbered.text) for n in marker.ids]
    assert list(dict.fromkeys(seen)) == list(range(1, len(numbered.references) + 1))
    assert len({r.url for r in numbered.references}) == len(numbered.references)
    cited = {i for ids in groups for i in ids if i != 99}
    assert {i for r in numbered.references for i in r.evidence} == cited


def test_what_a_marker_belongs_to():
    text = (
        "## Heading [7]\n\nFirst fact here [3], and second fact there [4]. Third fact here. [7] Fourth fact "
        "here.[4]\n\n- A point of a list [3][7]\n- Another point\n\n| cell fact here [4] | other |\n\n"
        "```\ncode [7]\n```\n"
    )
    found = [(claim.text, claim.ids, claim.beside) for claim in claims(text)]
    assert found == [
        ("First fact here", (3,), (3,)),
        (", and second fact there", (4,), (4,)),
        ("Third fact here.", (7,), (7,)),
        ("Fourth fact here.", (4,), (4,)),
        ("A point of a list", (3,), (3, 7)),
        ("A point of a list", (7,), (3, 7)),
        ("cell fact here | other |", (4,), (4,)),
    ]


def test_a_marker_before_too_few_words_belongs_to_the_sentence():
    assert [c.text for c in claims("Eiffel [3] built the tower in 1889 [7].")] == [
        "Eiffel built the tower in 1889.",
        "built the tower in 1889",
    ]


def test_faults_are_taken_out_and_recorded():
    made = check(
        "The tower is 330 metres tall [7]. The tower is 350 metres tall [7]. Bridges carry trains [99]. "
        "It was built in 1889 by Gustave Eiffel [4, 3]."
    )
    assert made.text == (
        "The tower is 330 metres tall [7]. The tower is 350 metres tall. Bridges carry trains. "
        "It was built in 1889 by Gustave Eiffel [3]."
    )
    assert [(row.evidence_id, row.status) for row in made.rows] == [
        (7, "supported"),
        (7, "unsupported"),
        (99, "dangling"),
        (4, "unsupported"),
        (3, "supported"),
    ]
    assert [row.section for row in made.rows] == ["2"] * 5
    assert made.rows[0].quote_overlap == 1.0
    assert made.rows[0].url == "https://a.example"
    assert made.rows[2].url == ""
    assert precision(made.rows) == pytest.approx(0.4)
    assert effective(made.rows) == 2


def test_evidence_that_was_not_offered_dangles():
    made = check("The tower is 330 metres tall [7].", admissible=(3,))
    assert [row.status for row in made.rows] == ["dangling"]
    assert made.text == "The tower is 330 metres tall."


def test_sources_may_share_a_sentence_and_carry_nobody_else():
    text = "The tower, built in 1889 by Gustave Eiffel, is 330 metres tall [3][7][4]."
    made = check(text)
    assert [(row.evidence_id, row.status) for row in made.rows] == [
        (3, "supported"),
        (7, "supported"),
        (4, "unsupported"),
    ]
    assert made.text == "The tower, built in 1889 by Gustave Eiffel, is 330 metres tall [3][7]."


def test_the_same_citation_twice_is_one_effective_citation():
    made = check("The tower is 330 metres tall [7, 7]. The tower is 330 metres tall [3]. It stands.")
    assert effective(made.rows) == 1
    assert made.text.startswith("The tower is 330 metres tall [7].")
    assert precision([]) is None
    assert effective([]) == 0


def test_an_id_may_stand_for_several_texts():
    found = claims("The tower is 330 metres tall [1].")
    sources = {1: ["Bridges carry trains.", "The tower is 330 metres tall."]}
    rows = check_claims(found, sources, {1: "u"}, checker=LexicalChecker())
    assert [(row.status, row.url) for row in rows] == [("supported", "u")]
    assert [row.status for row in check_claims(found, {1: []}, {}, checker=LexicalChecker())] == ["dangling"]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab. [37]\n-`#|\\", max_size=60))
def test_checking_any_text_keeps_its_words(text):
    made = check(text)
    assert "".join(without_markers(made.text).split()) == "".join(
        without_markers(without_links(text)).split()
    )
    assert all(row.status == "supported" for row in check(made.text).rows)
    for claim in claims(text):
        assert claim.text in ("", claim.sentence) or claim.ids


HOSTILE = [
    "See [1](https://evil.example) now",
    "![x](https://evil.example/p.png) is here",
    "<img src=x onerror=alert(1)> is here",
    "<https://evil.example> is here",
    "it says [3] and [id_4, 7] here",
    "[a]: https://evil.example",
    "one `tick here [3]",
    "### heading * list",
]


@pytest.mark.parametrize("sentence", HOSTILE)
def test_a_quoted_sentence_acts_as_nothing(sentence):
    plain = plain_sentence(sentence)
    assert list(find_markers(plain)) == []
    assert without_links(plain) == plain
    assert "\n" not in plain
    # What the reader sees is what the source says.
    seen = without_emphasis(plain).rstrip(".").replace("`", "")
    assert seen == without_emphasis(sentence).rstrip(".").replace("`", "")
    assert plain_sentence(plain) == plain


@pytest.mark.parametrize(
    "text",
    [
        "a [b](https://evil.example)",
        "a [b [c] d](https://evil.example)",
        "![b [c]](https://evil.example)",
        "[![b](https://evil.example)](https://evil.example)",
        "> [r]: https://evil.example\n\n[x][r] and [r]",
        "- [r]: <https://evil.example> 't'\n\n[r][]",
        "<https://evil.example> <a href='https://evil.example'>x</a>",
        "<img src='https://evil.example'>",
        "[b](<https://evil.example>)",
        "[b]( https://evil.example 'title (x)' )",
        "[b](https://evil.example/(x))",
        "        ```\n[b](https://evil.example)\n        ```",
        "``` `x` [b](https://evil.example)\n```",
        "`one\n- [b](https://evil.example)\n- two`",
        "- a\n  ```\n[b](https://evil.example)\n  ```",
        "> ```\n[b](https://evil.example)",
        "\\`[b](https://evil.example)`",
        "<https://evil.example/`>[b](https://evil.example)`",
        "| `a | [b](https://evil.example) | c` |\n|-|-|-|\n| `a | [b](https://evil.example) | c` |",
    ],
)
def test_a_model_cannot_write_what_loads_or_leads_elsewhere(text):
    """A renderer that allows everything finds no link, no image and no HTML in it."""
    from markdown_it import MarkdownIt

    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(without_links(text))
    assert (
        re.findall(
            r"<(?!/?(?:p|ol|ul|li|blockquote|em|strong|code|h\d|br|hr|pre|table|t[hrd]|thead|tbody)\b)[a-z!/]",
            rendered,
        )
        == []
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a [b](https://evil.example) c", "a b c"),
        ("a ![b](https://evil.example) c", "a b c"),
        ("a ![b][r] c", "a b c"),
        ("<b>x</b>", "\\<b>x\\</b>"),
        ("a < b and c > d", "a < b and c > d"),
        ("[r]: https://evil.example\nx", "\nx"),
        ("a [b [c] d](https://evil.example)", "a [b [c] d\\](https://evil.example)"),
        ("> [r]: https://evil.example", "> \\[r]: https://evil.example"),
        ("1. [r]: https://evil.example", "1. \\[r]: https://evil.example"),
        ("mail <a@b.example>", "mail "),
        ("`<b>[x](y)</b>`", "`<b>[x](y)</b>`"),
        ("[7] stays [3, 4]", "[7] stays [3, 4]"),
    ],
)
def test_links_go_and_words_stay(text, wanted):
    assert without_links(text) == wanted
