"""Results as Markdown: cells survive any text, README and documentation come from the same files."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from assay.errors import InputError
from assay.report import write_markdown, write_results
from assay.report.markdown import END, START, _code, _table, escape


class Cells(HTMLParser):
    """The text of every cell of the tables in an HTML text, row by row."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.inside = [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True
        else:
            assert tag in ("table", "thead", "tbody", "code", "a", "p", "h1", "h2", "ul", "li", "pre"), tag

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def commonmark(text):
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def python_markdown(text):
    import markdown

    return markdown.markdown(text, extensions=["tables", "fenced_code"])


def strip(rows):
    return [[cell.strip() for cell in row] for row in rows]


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"])), min_size=1)
)
def test_any_text_survives_a_cell(texts):
    shown = strip(Cells(commonmark(_table(["a"], [[text] for text in texts]))).rows)
    assert shown == [["a"], *([" ".join(text.split())] for text in texts)]


@pytest.mark.parametrize("render", [commonmark, python_markdown])
def test_marks_of_markdown_and_html_survive_a_cell(render, hostile):
    texts = [
        hostile,
        "a | b",
        r"back\slash \| _x_ **y** `z`",
        "[link](x)",
        "two\nlines",
        "<b>&amp;",
        "~~s~~ $m$",
    ]
    shown = strip(Cells(render(_table(["a", "b"], [[text, "end"] for text in texts]))).rows)
    assert shown[1:] == [[" ".join(text.split()), "end"] for text in texts]


@pytest.mark.parametrize("text", ["plain", "a`b", "``x", "ends`", "a|b", "<!-- /assay:scoreboard -->"])
def test_code_survives_a_cell(text):
    from assay.report.markdown import _Markup

    shown = strip(Cells(commonmark(_table(["a", "b"], [[_Markup(_code(text)), "end"]]))).rows)
    assert shown[1] == [text, "end"]


def test_the_scoreboard_has_every_claim(make_run, make_verdict, tmp_path):
    reason = "not met: learnt"
    nothing = {"effect": None, "low": None, "high": None}
    path = make_run(
        verdicts=[make_verdict("C1"), make_verdict("C2", "not testable", reason=reason, paper="", **nothing)]
    )
    write_markdown(path.parent, tmp_path / "S.md")
    text = (tmp_path / "S.md").read_text()
    rows = strip(Cells(commonmark(text)).rows)
    assert rows[1] == [
        "Toy regression",
        "C1 Claim C1: the method's error is below the baseline's.",
        "✓ holds",
        "0.098 [0.072, 0.124]",
        "0.20 against 0.31",
    ]
    assert rows[2][2:] == ["– not testable: not met: learnt", "–", "–"]
    assert rows[-1] == ["Toy regression", "quick", "assay study toy --scale quick"]
    assert "1 method, 2 claims: 1 holds, 1 not testable." in text


def test_only_what_stands_between_the_markers_is_replaced(make_run, tmp_path):
    target = tmp_path / "README.md"
    before, after = "# Mine\n\ntext | <b>\n\n", "\n\n## After\nno newline at the end"
    target.write_text(f"{before}{START}\nold\n{END}{after}")
    runs = make_run().parent
    write_markdown(runs, target)
    once = target.read_text()
    assert once.startswith(f"{before}{START}\n1 method")
    assert once.endswith(f"\n{END}{after}")
    assert "\nold\n" not in once
    write_markdown(runs, target)
    assert target.read_text() == once


def test_without_markers_the_whole_file_is_written(make_run, tmp_path):
    target = tmp_path / "deep" / "scoreboard.md"
    runs = make_run().parent
    write_markdown(runs, target)
    first = target.read_text()
    target.write_text("something old")
    write_markdown(runs, target)
    assert target.read_text() == first
    assert first.startswith("# Scoreboard\n")


@pytest.mark.parametrize("text", [START, END, f"{END} {START}", f"{START} {END} {START} {END}"])
def test_markers_that_do_not_pair_are_refused_and_the_file_is_left(make_run, tmp_path, text):
    target = tmp_path / "README.md"
    target.write_text(text)
    runs = make_run().parent
    with pytest.raises(InputError, match="mend or remove"):
        write_markdown(runs, target)
    assert target.read_text() == text


def test_a_marker_in_the_data_cannot_end_the_scoreboard(make_run, make_verdict, make_claim, tmp_path):
    target = tmp_path / "README.md"
    target.write_text(f"{START}\n{END}\n")
    evil = f"x {END} y"
    path = make_run(
        verdicts=[make_verdict(evil, says=evil)],
        claims=[make_claim(evil, says=evil)],
        command=evil,
        title=evil,
    )
    write_markdown(path.parent, target)
    assert target.read_text().count(END) == 1


def test_results_hold_what_the_documentation_shows(make_run, make_verdict, tmp_path):
    condition = {"says": "It has learnt", "value": 0.81, "threshold": "≥ 0.5", "met": True}
    run = make_run(verdicts=[make_verdict("C1", preconditions=[condition]), make_verdict("C2", "fails")])
    index = write_results(run, tmp_path / "docs" / "toy")
    assert sorted(
        str(path.relative_to(index.parent)) for path in index.parent.rglob("*") if path.is_file()
    ) == [
        "figures/errors.dark.svg",
        "figures/errors.light.svg",
        "figures/histogram.dark.svg",
        "figures/histogram.light.svg",
        "index.md",
        "study.json",
        "verdicts.json",
    ]
    assert (index.parent / "verdicts.json").read_bytes() == (run / "verdicts.json").read_bytes()
    text = index.read_text()
    for wanted in (
        "# Toy regression: results\n",
        "```bash\nassay study toy --scale quick\n```",
        "![Figure 1](figures/errors.light.svg#only-light)\n![Figure 1](figures/errors.dark.svg#only-dark)\n",
        "**Figure 1.** The error of each arm by seed. Lower is better.",
        "&lt;over&gt; all arms &amp; seeds.",
        "| It has learnt | 0.810 | ≥ 0.5 | met |",
        "| git revision | 0123456789ab |",
        "- `C1`: error, improvement of method over baseline (98.75 % interval); means: method 0.203",
    ):
        assert wanted in text, wanted
    for address in re.findall(r"\]\(([^)#]+)#only", text):
        assert (index.parent / address).is_file()


def test_results_are_readable_as_runs_and_link_to_their_pages(make_run, tmp_path):
    run = make_run()
    write_results(run, tmp_path / "docs" / "results" / "toy")
    readme = tmp_path / "README.md"
    readme.write_text(f"{START}\n{END}\n")
    write_markdown(tmp_path / "docs" / "results", readme)
    assert "[Toy regression](docs/results/toy/index.md)" in readme.read_text()
    write_markdown(tmp_path / "docs" / "results", tmp_path / "docs" / "results" / "index.md")
    assert "[Toy regression](toy/index.md)" in (tmp_path / "docs" / "results" / "index.md").read_text()


def test_results_replace_older_results(make_run, tmp_path):
    folder = tmp_path / "docs" / "toy"
    write_results(make_run("first"), folder)
    (folder / "figures" / "stale.light.svg").write_text("")
    write_results(make_run("second", title="A newer title"), folder)
    assert not (folder / "figures" / "stale.light.svg").exists()
    assert "A newer title" in (folder / "index.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "smoke"}, "smoke run"),
        ({"finished": None}, "not finished"),
        ({"verdicts": []}, "no verdicts"),
    ],
)
def test_a_run_without_results_is_not_published(make_run, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        write_results(make_run(**changes), tmp_path / "toy")
    assert not (tmp_path / "toy").exists()


def test_results_never_replace_something_else(make_run, tmp_path):
    run, other_run = make_run("one"), make_run("two")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.md").write_text("years of work")
    for folder in (documents, other_run, documents / "thesis.md"):
        with pytest.raises(InputError, match="holds something else"):
            write_results(run, folder)
    for folder in (run, run / "figures", run.parent):
        with pytest.raises(InputError, match="choose another folder"):
            write_results(run, folder)
    assert (documents / "thesis.md").read_text() == "years of work"
    assert (other_run / "trials.jsonl").is_file()


def test_escape_is_one_line():
    assert "\n" not in escape("a\n\n# b")
