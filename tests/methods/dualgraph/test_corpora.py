"""Planted corpora and the documentation of CMake hold the relations that they are said to hold."""

import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError, MissingDependencyError
from assay.methods.dualgraph import cmake_documentation
from assay.methods.dualgraph.cmake_documentation import documentation, question_about
from assay.methods.dualgraph.corpora import PlantedDesign, pair, planted


@pytest.fixture(scope="module")
def documented():
    return documentation()


def stated(passages):
    """How many passages mention each pair of names together."""
    return Counter(
        pair(*two)
        for passage in passages
        for group in passage.mentions
        for two in combinations(sorted(group), 2)
    )


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    concentration=st.sampled_from([0.0, 0.5, 1.0]),
    documents=st.integers(1, 3),
)
def test_every_planted_relation_is_stated_and_no_other(seed, concentration, documents):
    design = PlantedDesign(concentration=concentration, documents=documents, distractors=2)
    corpus = planted(design, seed)
    assert stated(corpus.passages) == dict.fromkeys(corpus.gold, documents)
    for passage in corpus.passages:
        for group in passage.mentions:
            assert all(name in passage.text for name in group)


def test_the_counts_of_a_design():
    corpus = planted(PlantedDesign(), 0)
    kinds = Counter(corpus.gold.values())
    # 7 relations of the core entity and 60% of the 21 pairs of the others, in 5 groups.
    assert kinds == {"intra": 5 * (7 + 13), "bridge": 10}
    assert len(corpus.passages) == 2 * 110 + 40 * 20
    assert len(corpus.core) == 5
    assert all(name in corpus.question for name in corpus.core)
    names = {name for two in corpus.gold for name in two}
    assert len(names) == 40


def test_names_are_no_words_of_the_filler_and_no_parts_of_each_other():
    for seed in range(5):
        names = {name for two in planted(PlantedDesign(), seed).gold for name in two}
        assert len({name.casefold() for name in names}) == len(names)
        assert all(re.fullmatch(r"[A-Z][a-z]{4,}", name) for name in names)


def test_bridges_cluster_as_far_as_the_concentration_says():
    def blocks(concentration):
        """How many pairs of groups the bridges of 12 corpora lie in, on average."""
        counts = []
        for seed in range(12):
            corpus = planted(PlantedDesign(concentration=concentration, documents=1, distractors=1), seed)
            group = {}
            for number, centre in enumerate(corpus.core):
                group |= {
                    name: number
                    for two, kind in corpus.gold.items()
                    if kind == "intra" and centre in two
                    for name in two
                }
            bridges = [two for two, kind in corpus.gold.items() if kind == "bridge"]
            assert all(group[u] != group[v] for u, v in bridges)
            counts.append(len({frozenset((group[u], group[v])) for u, v in bridges}))
        return sum(counts) / len(counts)

    assert blocks(1.0) <= 2.0
    assert blocks(0.0) > 5.0
    assert blocks(1.0) < blocks(0.5) < blocks(0.0)


def test_equal_seeds_give_equal_corpora_and_others_others():
    first, again, other = (planted(PlantedDesign(), seed) for seed in (3, 3, 4))
    assert first == again
    assert first.gold != other.gold


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"concentration": 1.5}, "between 0 and 1, got 1.5"),
        ({"bridged_pairs": 3}, "3 disjoint pairs of 5 groups"),
        ({"bridging_members": 9}, "9 of 8 names"),
        ({"bridges": 40}, "40 bridges do not fit into 32"),
    ],
)
def test_designs_that_do_not_exist_are_refused(wrong, says):
    with pytest.raises(InputError, match=says):
        PlantedDesign(**wrong)


def test_the_documentation_is_what_the_study_describes(documented):
    assert len(documented.passages) > 10_000
    assert len(documented.gold) > 1_000
    # CMAKE_CXX_STANDARD's page says that it is the default value of the property CXX_STANDARD.
    assert "CXX_STANDARD" in documented.neighbours
    assert pair("COMPILE_DEFINITIONS", "target_compile_definitions") in documented.gold
    text = " ".join(passage.text for passage in documented.passages)
    assert not re.search(r":(command|variable|prop_tgt|module|policy):`", text)
    assert len({passage.text for passage in documented.passages}) == len(documented.passages)


def test_every_gold_relation_is_mentioned_in_some_passage(documented):
    mentioned = stated(documented.passages)
    found = sum(two in mentioned for two in documented.gold)
    # Paragraphs that are too short to be passages are the only ones missing.
    assert found / len(documented.gold) > 0.97


def test_a_paragraph_becomes_what_a_reader_sees():
    text = (
        "add_thing\n---------\n\n"
        "See :command:`add_library` and :prop_tgt:`the type <TYPE>` of ``<tgt>``.\n\n"
        ".. code-block:: cmake\n\n  add_thing(a)\n\n"
        "* First item of a list\n  goes on.\n* Second item.\n\n"
        ".. |more| replace:: nothing\n\nShown::\n\n  literal(b)\n\nLast."
    )
    plain = [cmake_documentation._plain(paragraph) for paragraph in cmake_documentation._paragraphs(text)]
    assert plain == [
        "add_thing",
        "See add_library and the type of <tgt>.",
        "First item of a list goes on.",
        "Second item.",
        "Shown::",
        "Last.",
    ]
    assert cmake_documentation._title(text) == "add_thing"


def test_references_name_their_target():
    found = [
        cmake_documentation._target_name(match)
        for match in cmake_documentation._TARGET.finditer(
            ":command:`set` :command:`if(DEFINED) <if>` :command:`cmake_path(GET)` :manual:`cmake(1)`"
        )
    ]
    assert found == ["set", "if", "cmake_path"]


def test_questions_are_about_linked_names(documented):
    for seed in range(10):
        corpus = question_about(documented, seed)
        assert len(set(corpus.core)) == 3
        centre, *others = corpus.core
        assert all(pair(centre, other) in corpus.gold for other in others)
        near = set(corpus.core).union(*(documented.neighbours[name] for name in corpus.core))
        assert all(set(two) <= near for two in corpus.gold)
        assert len(corpus.gold) >= 6
    assert question_about(documented, 1) == question_about(documented, 1)
    assert question_about(documented, 1).core != question_about(documented, 2).core


def test_a_missing_or_changed_package_is_named(monkeypatch):
    monkeypatch.setattr(cmake_documentation, "CMAKE_SHA256", "0" * 64)
    with pytest.raises(InputError, match=r"differs from that of version .*--force-reinstall"):
        cmake_documentation._pages()

    def absent(name):
        raise cmake_documentation.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cmake_documentation.metadata, "distribution", absent)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps cmake=="):
        cmake_documentation._pages()
