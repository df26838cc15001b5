"""The outline: its text form, and what it may not lose."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.records import Point, Section

TEXT = """\
Some preamble that is no outline.

1. Causes <citation>id_4, id_7</citation>
- first point
- second point <citation>id_7</citation>
1.1. Human
a. lettered point <citation>EN9</citation>
2. **Consequences**
2.1.1 Too deep
* starred
"""


class TestParse:
    def test_known_text(self):
        outline = OutlineGraph.parse(TEXT)
        assert outline.sections == (
            Section(1, "1", "Causes", None, (Point("first point"), Point("second point", (7,))), (4, 7)),
            Section(2, "1.1", "Human", 1, (Point("lettered point", (9,)),)),
            Section(3, "2", "Consequences"),
            Section(4, "2.1", "Too deep", 3, (Point("starred"),)),
        )
        assert outline.evidence() == {4, 7, 9}

    def test_wrong_numbers_are_put_right(self):
        outline = OutlineGraph.parse("3. A\n3.2. B\n3.2. C\n9) D\n## 10. E")
        assert [section.number for section in outline.sections] == ["1", "1.1", "1.2", "2", "3"]

    @pytest.mark.parametrize("text", ["", "no heading at all", "- a point\n- another"])
    def test_text_without_headings_is_refused(self, text):
        with pytest.raises(InputError, match="numbered heading"):
            OutlineGraph.parse(text)

    def test_levels_can_not_be_skipped(self):
        with pytest.raises(InputError, match="level"):
            OutlineGraph([Section(1, "1.1", "deep")])


words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=30
).filter(lambda text: text.strip() and "citation>" not in text.casefold())
ids = st.lists(st.integers(1, 99), max_size=3).map(tuple)


@st.composite
def outlines(draw):
    level, sections = 0, []
    for _ in range(draw(st.integers(1, 7))):
        level = draw(st.integers(1, min(level + 1, 3)))
        points = draw(st.lists(st.builds(Point, words, ids), max_size=3))
        number = ".".join("1" * level)
        sections.append(Section(0, number, draw(words), points=tuple(points), evidence=draw(ids)))
    return OutlineGraph(sections)


class TestProperties:
    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(outlines())
    def test_parse_reads_what_render_writes(self, outline):
        assert OutlineGraph.parse(outline.render()) == outline

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(outlines(), outlines())
    def test_an_update_loses_no_citation_and_invents_none(self, old, new):
        known = set(range(1, 60))
        old, _ = OutlineGraph().update(old, known)
        result, _ = old.update(new, known)
        assert old.evidence() <= result.evidence() <= known
        proposed = {line.text for line in new.lines()}
        for line in old.lines():
            same = [other for other in result.lines() if other.text == line.text in proposed]
            assert not same or any(set(line.evidence) <= set(other.evidence) for other in same)
        assert OutlineGraph.parse(result.render()) == result
        assert result.update(result, known) == (result, 0)


class TestUpdate:
    old = OutlineGraph.parse("1. Causes\n- trees are cut <citation>id_1, id_2</citation>\n- wind\n2. End")

    def update(self, text: str) -> tuple[str, int]:
        outline, repairs = self.old.update(OutlineGraph.parse(text), known={1, 2, 3})
        return outline.render(), repairs

    def test_a_good_proposal_is_taken_as_it_is(self):
        text = "1. Causes\n- trees are cut <citation>id_1, id_2, id_3</citation>\n2. Other"
        assert self.update(text) == (text, 0)

    def test_lost_ids_come_back_to_their_line(self):
        text = "1. Causes\n- trees are cut <citation>id_1</citation>"
        assert self.update(text) == ("1. Causes\n- trees are cut <citation>id_1, id_2</citation>", 1)

    def test_a_reworded_line_gets_its_ids_back(self):
        text = "1. Causes\n- trees are cut down"
        assert self.update(text) == ("1. Causes\n- trees are cut down <citation>id_1, id_2</citation>", 1)

    def test_ids_that_moved_are_not_lost(self):
        text = "1. Other words entirely <citation>id_2, id_1</citation>"
        assert self.update(text) == (text, 0)

    def test_a_lost_line_comes_back_under_its_heading(self):
        text = "1. Introduction\n2. causes\n- rain"
        back = f"{text}\n- trees are cut <citation>id_1, id_2</citation>"
        assert self.update(text) == (back, 1)

    def test_without_its_heading_it_brings_the_heading_along(self):
        text = "1. Introduction"
        back = f"{text}\n2. Causes\n- trees are cut <citation>id_1, id_2</citation>"
        assert self.update(text) == (back, 1)

    def test_unknown_ids_are_removed(self):
        text = "1. Causes <citation>id_77</citation>\n- trees are cut <citation>id_1, id_2</citation>"
        assert self.update(text) == ("1. Causes\n- trees are cut <citation>id_1, id_2</citation>", 1)


class TestTree:
    outline = OutlineGraph.parse(
        "1. A\n- x\n- y <citation>id_1</citation>\n1.1. B\n2. C\n2.1. D\n- z\n3. E\n10. F"
    )

    def test_lines_that_a_search_should_serve(self):
        assert [line.text for line in self.outline.uncited()] == ["x", "B", "z", "E", "F"]

    def test_subtrees_do_not_mix_up_numbers(self):
        titles = [section.title for section in self.outline.subtree(3)]
        assert titles == ["C", "D"]
        assert [section.title for section in self.outline.top_level()] == ["A", "C", "E", "F"]
        many = OutlineGraph.parse("\n".join(f"{i}. T{i}" for i in range(1, 12)))
        assert [section.title for section in many.subtree(1)] == ["T1"]
        with pytest.raises(InputError, match="section 99"):
            self.outline.subtree(99)

    def test_a_subtree_becomes_an_outline_of_its_own(self):
        lower = OutlineGraph.from_subtree(self.outline.subtree(4))
        assert lower.render() == "1. D\n- z"
