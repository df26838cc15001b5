"""Sentences, numbers, names and quotes: known answers and properties."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.dualgraph.sentences import (
    capitalised,
    content_words,
    identifiers,
    longest_quote,
    names,
    negations,
    numbers,
    split_sentences,
    stem,
    words,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("It costs 3.50 dollars. Fine.", ["It costs 3.50 dollars.", "Fine."]),
        ("See e.g. the docs. Then go.", ["See e.g. the docs.", "Then go."]),
        ("J. Smith wrote it. He did.", ["J. Smith wrote it.", "He did."]),
        ("Use os.path.join here. Done.", ["Use os.path.join here.", "Done."]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("A heading\n\nA paragraph", ["A heading", "A paragraph"]),
        ("Items:\n- one\n- two", ["Items:", "- one", "- two"]),
        ("这是第一句。这是第二句！", ["这是第一句。", "这是第二句！"]),
        ("approx. five of them", ["approx. five of them"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences(text, wanted):
    assert [sentence.text for sentence in split_sentences(text)] == wanted


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='ab .!?\n-1A"”。(e.g', max_size=80))
def test_sentences_are_where_they_say_and_nothing_is_lost(text):
    sentences = split_sentences(text)
    assert all(text[s.start : s.end] == s.text for s in sentences)
    assert all(a.end <= b.start for a, b in pairwise(sentences))
    assert "".join("".join(s.text.split()) for s in sentences) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,000.5 and 3.11.2", ["1000.5", "3.11.2"]),
        ("12% of -5 is −0.6", ["12%", "-5", "-0.6"]),
        ("from 10-20 in 2020.", ["10", "20", "2020"]),
        ("x86_64, utf8 and CMP0048", []),
        ("1,2 and 1,000,000", ["1", "2", "1000000"]),
    ],
)
def test_numbers(text, wanted):
    assert numbers(text) == wanted


def test_names():
    text = "However, Boeing uses find_package() and CMAKE_BUILD_TYPE on GitHub. Airbus does not."
    assert identifiers(text) == ["find_package", "CMAKE_BUILD_TYPE", "GitHub"]
    assert capitalised(text) == ["Boeing", "CMAKE_BUILD_TYPE", "GitHub"]
    assert "Airbus" in capitalised(text, initial=True)
    assert names("The NASA and the nasa of NASA.") == ["nasa"]


@pytest.mark.parametrize(
    "forms",
    [
        ("target", "targets"),
        ("library", "libraries"),
        ("plan", "planned", "planning"),
        ("configure", "configured", "configures", "configuring"),
        ("class", "classes"),
        ("box", "boxes"),
    ],
)
def test_inflections_share_a_stem(forms):
    assert len({stem(form) for form in forms}) == 1


def test_names_of_code_are_not_stemmed():
    assert stem("CMAKE_FLAGS") == "CMAKE_FLAGS"
    assert content_words("The libraries are not linked") == ["library", "link"]


def test_words_of_languages_without_blanks_come_in_pairs():
    assert words("深度学习 works") == ["深度", "度学", "学习", "works"]


def test_negations():
    assert negations("It doesn't work and never did") == 2
    assert negations("It works without a network, not here") == 2
    assert negations("It works") == 0


def test_the_longest_quote():
    assert longest_quote("The tower is 330 metres tall", "Everybody knows: the tower is 330 feet tall") == (
        4,
        6,
    )
    assert longest_quote("", "anything") == (0, 0)
