"""Names and relations by rule."""

from __future__ import annotations

import pytest

from assay.methods.dualgraph.gazetteer import (
    NO_VERB,
    candidates,
    key,
    keyphrases,
    mentions,
    overlap,
    relation,
    same_names,
)


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        (
            "How does find_package() locate packages, and how is it related to CMAKE_PREFIX_PATH?",
            ["find_package", "packages", "CMAKE_PREFIX_PATH"],
        ),
        ("What is the impact of the Paris Agreement on car makers?", ["Paris Agreement", "car makers"]),
        ("How do Kestrel, Harrier and Owl work together?", ["Kestrel", "Harrier", "Owl"]),
        ("How do Kestrel and Harrier hunt?", ["Kestrel", "Harrier"]),
        ("How does CMake toolchain support work?", ["CMake", "toolchain support"]),
        ("Compare build systems for embedded software", ["build systems", "embedded software"]),
        ("如何使用深度学习进行天气预报?", ["如何使用深度学习进行天气预报"]),
        ("the of and?", []),
    ],
)
def test_keyphrases(question, wanted):
    assert keyphrases(question) == wanted


def test_candidates_are_names_and_not_values_or_abbreviations():
    text = "If TRUE, e.g. on Windows, the Bank of England and NASA use os.path. NOTE: Windows is required."
    found = candidates(text)
    assert found[0] == "Windows"
    assert {"Bank of England", "NASA", "os.path"} <= set(found)
    assert not {"TRUE", "NOTE", "e.g", "If"} & set(found)


def test_a_title_counts_where_the_passage_has_it():
    assert "toolchain file" in candidates("A toolchain file sets it.", "toolchain file")
    assert "toolchain file" not in candidates("Something else.", "toolchain file")


def test_mentions_prefer_the_longer_name_and_see_plurals():
    found = mentions("CMake toolchain files and CMake's file.", ["CMake", "toolchain files", "file"])
    assert [m.name for m in found] == ["CMake", "toolchain files", "CMake", "file"]
    assert [m.name for m in mentions("one toolchain file", ["toolchain files"])] == ["toolchain files"]
    assert mentions("catalogue", ["cat"]) == []
    assert [m.name for m in mentions("find_package(Foo)", ["find_package()"])] == ["find_package()"]


@pytest.mark.parametrize(
    ("between", "wanted"),
    [
        (" is used by the ", "is used by"),
        (" does not affect the ", "does not affect"),
        (" often sets ", "sets"),
        (" hunts the ", "hunts"),
        (" and other birds, ", NO_VERB),
        (" and ", NO_VERB),
        ("", NO_VERB),
        (", ", NO_VERB),
    ],
)
def test_relation(between, wanted):
    assert relation(between) == wanted


def test_same_names():
    named = [
        (1, "Structural Hole Theory"),
        (2, "SHT"),
        (3, "structural hole theories"),
        (4, "f()"),
        (5, "f"),
        (6, "g"),
    ]
    assert same_names(named) == [[1, 2, 3], [4, 5]]
    assert same_names([(1, "CMAKE_C_FLAGS"), (2, "CMAKE_CXX_FLAGS")]) == []
    assert key("Toolchain Files") == key("toolchain file")


def test_overlap():
    assert overlap("The Kestrel hunts voles", "kestrel vole") == 1.0
    assert overlap("The Kestrel hunts", "kestrel vole") == 0.5
    assert overlap("anything", "the of") == 0.0
