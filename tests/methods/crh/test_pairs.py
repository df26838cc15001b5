"""Pairs from files and dictionaries, our own data, and what is refused."""

import json
import re

import pytest

from assay.errors import InputError
from assay.methods.crh import (
    PairsError,
    load_concepts,
    load_pairs,
    load_questions,
    written_concepts,
    written_detector,
    written_pairs,
)


def records(n):
    return [
        {
            "question": f"Q{i}?",
            "concept": "dogs",
            "resp_no_concept": f"It is {i}.",
            "resp_with_concept": f"Dogs run {i}!",
        }
        for i in range(n)
    ]


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.csv"])
def test_round_trip(tmp_path, pairs, name):
    pairs.save(tmp_path / name)
    assert load_pairs(tmp_path / name) == pairs
    assert load_pairs(tmp_path / name).digest() == pairs.digest()


def test_quotes_commas_and_line_breaks_survive_csv(tmp_path):
    rows = records(3)
    rows[0]["resp_with_concept"] = 'Dogs, "good" ones:\n- Rex'
    load_pairs(rows).save(tmp_path / "p.csv")
    assert load_pairs(tmp_path / "p.csv")[0].resp_with_concept == 'Dogs, "good" ones:\n- Rex'


def broken(column, value):
    rows = records(4)
    rows[2][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (records(2), r"at least 3 distinct pairs are needed \(got 2\)"),
        (records(1) * 5, r"got 1"),
        (broken("concept", " "), "row 3 has an empty concept"),
        (broken("resp_no_concept", None), "row 3 has an empty resp_no_concept"),
        (broken("resp_with_concept", records(4)[2]["resp_no_concept"]), "row 3 has the same response"),
        ([{"question": "q"}] * 3, "row 1 lacks the column concept, resp_no_concept"),
        ([1, 2, 3], "row 1 is no record"),
    ],
)
def test_bad_pairs(rows, message):
    with pytest.raises(PairsError, match=message):
        load_pairs(rows)
    assert issubclass(PairsError, InputError)


def test_bad_files(tmp_path):
    (tmp_path / "torn.jsonl").write_text(json.dumps(records(1)[0]) + '\n{"question": ')
    with pytest.raises(PairsError, match="line 2 is not JSON"):
        load_pairs(tmp_path / "torn.jsonl")
    (tmp_path / "latin.csv").write_bytes(b"question,concept\nM\xfcller,x\n")
    with pytest.raises(PairsError, match="UTF-8"):
        load_pairs(tmp_path / "latin.csv")
    (tmp_path / "short.csv").write_text("question,concept\nq,c\n")
    with pytest.raises(PairsError, match="lacks the column resp_no_concept"):
        load_pairs(tmp_path / "short.csv")
    with pytest.raises(FileNotFoundError):
        load_pairs(tmp_path / "none.jsonl")


def test_splits(pairs):
    train, rest = pairs.split(8, seed=1)
    assert len(train) == 8
    assert sorted(train + rest) == list(range(12))
    assert pairs.split(8, seed=1) == (train, rest)
    assert pairs.split(8, seed=2) != (train, rest)
    for n in (2, 12, 40):
        with pytest.raises(PairsError):
            pairs.split(n, seed=0)


def test_a_question_is_never_on_both_sides():
    rows = [r | {"question": f"Q{i // 2}"} for i, r in enumerate(records(12))]
    pairs = load_pairs(rows)
    train, rest = pairs.split(7, seed=0)
    assert not {pairs[i].question for i in train} & {pairs[i].question for i in rest}


def test_concepts_of_three_kinds_with_detectors_that_tell_instruction_kinds_apart():
    concepts = load_concepts()
    assert len(concepts) >= 24
    for kind in ("text", "code", "math"):
        assert sum(c.kind == kind for c in concepts.values()) >= 8
    shown = {
        "python-function": "def double(x):\n    return 2 * x", "code-block": "```\nx = 1\n```",
        "for-loop": "for i in range(3):\n    pass", "import": "import math", "print": "print('hi')",
        "comment": "# add one\nx += 1", "html": "<p>Hello</p>", "sql": "SELECT name FROM people;",
        "shell": "$ ls -l", "json": '{"a": 1}', "equation": "x + 2 = 5", "fraction": "about 3/4 of it",
        "percent": "roughly 20% of it", "square-root": "√2", "power": "x^2", "geometry": "a triangle",
        "probability": "the odds are even", "proof": "Suppose not. Therefore yes.",
        "arithmetic": "12 + 7 = 19", "average": "the average of both", "questions": "Why? What do you think?",
        "bullets": "- one\n- two", "capitals": "THIS IS ALL VERY LOUD", "exclamation": "Wow! Great!",
    }  # fmt: skip
    plain = "You could take a long walk and think about your plans for a while."
    for name, text in shown.items():
        assert concepts[name].detector(text), name
    for name, concept in concepts.items():
        assert not concept.detector(plain), name


def test_written_data_is_clean():
    pairs = written_pairs()
    assert len(written_concepts()) == 8
    assert len(pairs) == 8 * 24
    present = [row.resp_with_concept for row in pairs.rows]
    neutral = {row.resp_no_concept for row in pairs.rows}
    assert len(set(present)) == len(present)
    assert len(neutral) == 24
    assert not neutral & set(present)
    detectors = {concept: written_detector(concept) for concept in written_concepts()}
    for row in pairs.rows:
        for concept, detector in detectors.items():
            assert detector(row.resp_with_concept) == (concept == row.concept), row
            assert not detector(row.resp_no_concept), row
    # Without a sentence in two places, no split can have one on both sides.
    train, rest = pairs.of_concept("dogs").split(16, 0)
    assert not {pairs[i].resp_with_concept for i in train} & {pairs[i].resp_with_concept for i in rest}
    with pytest.raises(PairsError, match="there are"):
        written_pairs(["cats"])
    with pytest.raises(PairsError):
        written_detector("cats")
    with pytest.raises(PairsError):
        pairs.of_concept("cats")


def test_questions():
    questions = load_questions()
    assert len(questions) == len(set(questions)) >= 48
    assert set(load_questions(kind="code")) < set(questions)
    assert all(re.search(r"\?$", question) for question in questions)


def test_files_of_users(tmp_path):
    (tmp_path / "c.csv").write_text('id,instruction,pattern\ncats,Talk about cats.,"\\bcats?\\b"\n')
    cats = load_concepts(tmp_path / "c.csv")["cats"]
    assert cats.detector("Two cats.")
    assert cats.kind == "text"
    (tmp_path / "q.txt").write_text("Why?\n\nWhy?\nHow?\n")
    assert load_questions(tmp_path / "q.txt") == ["Why?", "How?"]
    (tmp_path / "q.json").write_text('["Who?"]')
    assert load_questions(tmp_path / "q.json") == ["Who?"]
    bad = {
        "a.csv": ("id,instruction\nx,y\n", "lacks pattern"),
        "b.csv": ("id,instruction,pattern\nx,y,(\n", "regular expression"),
        "c2.csv": ("id,instruction,pattern,kind\nx,y,z,poem\n", "kind"),
        "d.csv": ("id,instruction,pattern,at_least\nx,y,z,many\n", "at_least"),
        "e.csv": ("id,instruction,pattern\nx,y,z\nx,y,z\n", "twice"),
        "f.csv": ("id,instruction,pattern\n", "holds no concepts"),
        "g.json": ("{", "not JSON"),
        "h.json": ("{}", "no list"),
        "i.json": ("[3]", "no record"),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(PairsError, match=message):
            load_concepts(tmp_path / name)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(PairsError, match="no questions"):
        load_questions(tmp_path / "empty.txt")
