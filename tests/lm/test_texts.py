from __future__ import annotations

import re

import pytest

from assay.errors import InputError
from assay.lm import Text, text

NAMES = ["python-docs", "shakespeare", "kjv"]


@pytest.fixture(scope="module")
def texts() -> dict[str, Text]:
    return {name: text(name) for name in NAMES}


def units(content: str) -> set[str]:
    """Paragraphs whatever their spacing, found without the code under test."""
    found, current = set(), []
    for line in [*content.split("\n"), ""]:
        if line.strip():
            current.extend(line.split())
        elif current:
            found.add(" ".join(current))
            current = []
    return found


def grams(content: str, n: int = 13) -> set[tuple[str, ...]]:
    words = content.split()
    return set(zip(*(words[i:] for i in range(n)), strict=False))


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_share_no_paragraph_and_hardly_a_phrase(texts, name):
    whole = texts[name]
    calibration, evaluation = units(whole.calibration), units(whole.evaluation)
    assert len(evaluation) > 300
    assert not calibration & evaluation
    ours = grams(whole.evaluation)
    assert len(ours & grams(whole.calibration)) < 0.01 * len(ours)
    share = len(whole.evaluation) / (len(whole.evaluation) + len(whole.calibration))
    assert 0.15 < share < 0.2


@pytest.mark.parametrize("name", NAMES)
def test_the_split_is_the_same_every_time(texts, name):
    assert text(name) == texts[name]


def test_documents_are_not_cut(texts):
    # Hamlet and Genesis are in one part as a whole: their first and last sentences are.
    hamlet = ("HAMLET, PRINCE OF DENMARK", "Go, bid the soldiers shoot.")
    genesis = ("In the beginning God created the heavens", "and he was put in a coffin in Egypt.")
    for name, (first, last) in {"shakespeare": hamlet, "kjv": genesis}.items():
        part = next(p for p in (texts[name].calibration, texts[name].evaluation) if first in p)
        assert part.index(first) < part.index(last)


def test_verse_numbers_are_gone_and_every_verse_is_there(texts):
    both = texts["kjv"].calibration + "\n\n" + texts["kjv"].evaluation
    assert not re.search(r"\d", both)
    assert "\n\nJesus wept.\n\n" in both
    # Verses that the package keeps as one row, and one that it keeps as two passages.
    assert "upon the earth: and it was so.\n\nAnd God made two great lights" in both
    assert "so that he could not see.\n\nAnd he brought them near unto him" in both
    assert both.count("The First Book of Moses, called Genesis") == 1


def test_provenance_is_told(texts):
    assert texts["shakespeare"].source == "package shakespeare 0.6"
    assert re.fullmatch(r"pydoc_data.topics of Python 3\.\d+\.\d+\S*", texts["python-docs"].source)
    assert "public domain" in texts["kjv"].licence


def test_a_file_is_split_by_paragraphs(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(
        "\n\n".join(f"Paragraph {i},\n   on two lines." for i in range(9))
        + "\n \nParagraph 1,\non two lines.\n"
    )
    whole = text(path)
    assert whole.calibration.split("\n\n") == [f"Paragraph {i},\n   on two lines." for i in range(8)]
    # Paragraph 1 comes again at the end, spaced differently, and is dropped there.
    assert whole.evaluation == "Paragraph 8,\n   on two lines."
    assert whole.name == str(path)
    assert text(str(path)) == whole


def test_a_file_without_blank_lines_is_split_by_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"Zeile {i} über α\n" for i in range(10)), encoding="utf-8")
    whole = text(path)
    assert whole.calibration == "\n".join(f"Zeile {i} über α" for i in range(8))
    assert whole.evaluation == "Zeile 8 über α\nZeile 9 über α"


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.txt is no file; .* 'kjv', 'python-docs', 'shakespeare'"):
        text(tmp_path / "nowhere.txt")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Zeile über\n\nnoch eine".encode("latin-1"))
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 6\)"):
        text(latin)
    for content, count in {"": 0, "one line only\n": 1}.items():
        path = tmp_path / "short.txt"
        path.write_text(content)
        with pytest.raises(InputError, match=f"has {count} paragraphs or lines; at least 2"):
            text(path)
    path.write_text("the same\n\nthe  same\n")
    with pytest.raises(InputError, match="repeats itself"):
        text(path)
