"""The model without a language model: every role, the same every time, never a word of its own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.extractive import ExtractiveModel, chain_query, extract, take_turns
from assay.methods.dualgraph.extractive_outline import (
    in_turn,
    judge_outline,
    starting_outline,
    updated_outline,
)
from assay.methods.dualgraph.markers import find_markers
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.prompts import ROLES
from assay.methods.dualgraph.records import ChatModel

QUESTION = "How do Kestrel and Harrier hunt?"
PAGE = (
    "The Kestrel hovers over the Meadow before it strikes. It then drops on the Vole. Contact the editor.\n\n"
    "The Harrier glides over the Marsh while it hunts. See also the page on owls. "
    "A recipe for soup needs carrots, onions and salt."
)


@pytest.fixture
def model() -> ExtractiveModel:
    return ExtractiveModel(HashedWords())


def ask(model, role, **data):
    result = model.chat([{"role": "user", "content": "x" * 400}], role=role, data=data)
    assert result.usage.estimated
    assert result.usage.prompt_tokens == 100
    return json.loads(result.text)


def evidence(*contents: str, first: int = 1) -> list[dict]:
    return [{"id": i, "title": "Birds", "content": text} for i, text in enumerate(contents, first)]


def test_it_is_a_chat_model_with_a_rule_for_every_role(model):
    from assay.methods.dualgraph.extractive import ROLES as RULES

    assert isinstance(model, ChatModel)
    assert set(ROLES) <= set(RULES)


@pytest.mark.parametrize(("role", "data"), [("", {}), ("chat", {}), ("write", None)])
def test_it_cannot_chat(model, role, data):
    with pytest.raises(InputError, match="has no rule for the role"):
        model.chat([], role=role, data=data)
    with pytest.raises(InputError, match="diversity"):
        ExtractiveModel(diversity=1.5)


def test_the_starting_outline_is_an_outline(model):
    text = ask(model, "outline_init", question=QUESTION, language="en")["outline"]
    outline = OutlineGraph.parse(text)
    assert [s.title for s in outline.top_level()] == ["Kestrel", "Harrier", "How they relate"]
    assert len(outline.uncited()) == 9
    foreign = OutlineGraph.parse(starting_outline("Wie jagen Turmfalke und Weihe?", "de"))
    assert "purpose" not in foreign.render()


def test_outline_queries_take_sections_in_turn_and_repeat_nothing(model):
    outline = starting_outline(QUESTION, "en")
    uncited = [line.text for line in OutlineGraph.parse(outline).uncited()]
    first = ask(model, "outline_queries", outline=outline, uncited=uncited, executed=[], pending=[], limit=4)[
        "queries"
    ]
    assert first == [
        "purpose of Kestrel",
        "purpose of Harrier",
        "Kestrel and Harrier",
        "behaviour of Kestrel",
    ]
    again = ask(
        model,
        "outline_queries",
        outline=outline,
        uncited=uncited,
        executed=first[:2],
        pending=first[2:],
        limit=40,
    )
    assert not set(first) & set(again["queries"])
    assert "purpose of Kestrel overview" in again["queries"]
    assert in_turn(outline, []) == []


def test_linear_queries_reword_the_question(model):
    first = ask(model, "linear_queries", question=QUESTION, executed=[], limit=3, evidence=[])["queries"]
    assert first == [QUESTION, "Kestrel", "Harrier"]
    more = ask(model, "linear_queries", question=QUESTION, executed=first, limit=50, evidence=evidence(PAGE))[
        "queries"
    ]
    assert not set(first) & set(more)
    assert "Kestrel Marsh" in more


def test_results_without_a_word_in_common_are_not_read(model):
    hits = [
        {"id": 1, "title": "Soup", "url": "u", "snippet": "carrots and onions"},
        {"id": 2, "title": "Kestrel", "url": "u", "snippet": "hunting"},
        {"id": 3, "title": "Kestrel and Harrier hunt", "url": "u", "snippet": ""},
    ]
    data = {"question": QUESTION, "query": "Kestrel", "hits": hits}
    assert ask(model, "select_urls", **data, limit=5)["ids"] == [3, 2]
    assert ask(model, "select_urls", **data, limit=1)["ids"] == [3]


def test_quotes_are_verbatim_relevant_and_complete(model):
    got = ask(model, "summarise", question=QUESTION, query="Kestrel hunts", title="Birds", text=PAGE)
    assert got["useful"]
    assert all(quote in PAGE for quote in got["evidence"])
    together = " ".join(got["evidence"])
    assert "hovers over the Meadow" in together
    assert "carrots" not in together
    assert "See also" not in together
    nothing = ask(
        model, "summarise", question=QUESTION, query="Kestrel", title="Soup", text="Carrots, onions and salt."
    )
    assert nothing == {
        "useful": False,
        "rationale": "no sentence shares a word",
        "evidence": [],
        "summary": "",
    }


def test_a_sentence_that_points_back_brings_what_it_points_to(model):
    text = "The Kestrel is a falcon of open land. It hunts the vole while the kestrel hovers in the wind."
    got = ask(
        model,
        "summarise",
        question="How does the kestrel hunt a vole?",
        query="kestrel hunts vole",
        title="",
        text=text,
    )
    assert text in got["evidence"]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="kestrel hunts. \nIt(]<", max_size=120))
def test_quotes_of_any_text_are_verbatim(text):
    model = ExtractiveModel(HashedWords())
    got = ask(model, "summarise", question="kestrel hunts", query="kestrel", title="t", text=text)
    assert all(quote in text for quote in got["evidence"])
    assert got["useful"] == bool(got["evidence"])


def test_names_and_relations_of_evidence():
    items = evidence(
        "The Kestrel hunts the Vole.", "The Harrier hunts the Vole in the Marsh.", "Soup needs Salt."
    )
    found = extract(
        {
            "question": QUESTION,
            "core": [],
            "nodes": [],
            "batch": [{"query": "q", "evidence": items}],
            "max_new_concepts": 2,
        }
    )
    assert found["nodes"] == [
        {"name": "Kestrel", "is_core": True},
        {"name": "Harrier", "is_core": True},
        {"name": "Vole", "is_core": False},
        {"name": "Marsh", "is_core": False},
    ]
    triples = {(e["source"], e["relation"], e["target"]): e["evidence"] for e in found["edges"]}
    assert triples["Kestrel", "hunts", "Vole"] == [1]
    assert triples["Harrier", "hunts", "Vole"] == [2]
    assert ("Harrier", "mentioned with", "Marsh") in triples
    assert all(3 not in ids for ids in triples.values())


def test_known_names_and_aliases_keep_their_spelling():
    nodes = [
        {"name": "Falco", "is_core": True, "aliases": ["Kestrel"]},
        {"name": "Vole", "is_core": False, "aliases": []},
    ]
    batch = [{"query": "q", "evidence": evidence("A kestrel catches voles near Aldern.")}]
    found = extract(
        {"question": QUESTION, "core": ["Falco"], "nodes": nodes, "batch": batch, "max_new_concepts": 0}
    )
    assert found["nodes"] == []
    assert [(e["source"], e["target"]) for e in found["edges"]] == [("Falco", "Vole")]


def test_merging_joins_spellings_only(model):
    concepts = [{"id": 4, "name": "Vole"}, {"id": 9, "name": "voles"}, {"id": 2, "name": "Marsh"}]
    assert ask(model, "merge", concepts=concepts) == {"groups": [{"name": "voles", "ids": [4, 9]}]}


def test_the_outline_grows_and_loses_nothing(model):
    outline = starting_outline(QUESTION, "en")
    items = evidence(
        "The Kestrel hunts the Vole.",
        "The purpose of the Kestrel is unknown.",
        "The Harrier glides over the Marsh.",
        "The Kestrel and the Harrier hunt the Vole.",
    )
    edges = [
        {"source": "Kestrel", "relation": "hunts", "target": "Vole", "evidence": [1, 4]},
        {"source": "Kestrel", "relation": "competes with", "target": "Harrier", "evidence": [4]},
    ]
    nodes = [{"name": n, "is_core": n != "Vole"} for n in ("Kestrel", "Harrier", "Vole")]
    once = updated_outline(outline, items, {"nodes": nodes, "edges": edges}, HashedWords())
    grown = OutlineGraph.parse(once)
    assert grown.evidence() == {1, 2, 3, 4}
    assert any(s.number == "1.1" and s.title == "Vole" for s in grown.sections)
    assert "- Kestrel competes with Harrier <citation>id_4</citation>" in once
    assert {line.text for line in OutlineGraph.parse(outline).lines()} <= {
        line.text for line in grown.lines()
    }
    # Again with the same changes nothing: no line twice, no id lost.
    twice = updated_outline(once, items, {"nodes": nodes, "edges": edges}, HashedWords())
    assert OutlineGraph.parse(twice).render() == grown.render()
    assert updated_outline("", items, {"nodes": [], "edges": []}, HashedWords()) == ""


def test_graph_queries_are_on_topic_new_and_take_turns(model):
    kinds = ["enrich"] * 4 + ["entity_concept"] * 3 + ["sbm_entropy"] * 2
    chains = [
        {"id": i, "type": kind, "u": f"U{i}", "v": f"V{i}", "reason": "", "content": "", "on_topic": i != 2}
        for i, kind in enumerate(kinds, 1)
    ]
    got = ask(model, "kg_queries", question=QUESTION, chains=chains, executed=["U1 V1"], limit=4)
    assert got["queries"] == [chain_query(f"U{i}", f"V{i}") for i in got["chains"]]
    assert not {1, 2} & set(got["chains"])
    assert {kinds[i - 1] for i in got["chains"]} == set(kinds)
    assert ask(model, "kg_queries", question=QUESTION, chains=[], executed=[], limit=4) == {
        "chains": [],
        "queries": [],
    }


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["enrich", "entity_concept", "cross_community", "sbm_entropy", "random_pair"]),
        max_size=30,
    ),
    st.integers(0, 40),
)
def test_turns(types, limit):
    taken = take_turns(types, limit)
    assert len(taken) == min(limit, len(types)) == len(set(taken))
    for kind in set(types):
        own = [place for place in taken if types[place] == kind]
        assert own == sorted(own)
        assert own == [i for i, t in enumerate(types) if t == kind][: len(own)]


def test_turns_follow_the_shares():
    types = ["enrich"] * 20 + ["cross_community"] * 20 + ["sbm_entropy"] * 20
    taken = [types[i] for i in take_turns(types, 10)]
    assert [taken.count(kind) for kind in ("enrich", "cross_community", "sbm_entropy")] == [4, 4, 2]
    assert len(set(taken[:3])) == 3


def judged(**changes):
    sections = [
        {"number": "1", "title": "Kestrel", "lines": 4, "cited": 4, "evidence": 3},
        {"number": "1.1", "title": "Prey", "lines": 4, "cited": 4, "evidence": 2},
        {"number": "2", "title": "Harrier", "lines": 4, "cited": 0, "evidence": 5},
    ]
    counts = {"nodes": 9, "edges": 9, "strong_edges": 4, "evidence": 9, "iteration": 1}
    data = {
        "question": QUESTION,
        "outline": "1. Kestrel\n2. Harrier",
        "sections": sections,
        "counts": counts,
    } | changes
    return judge_outline(data)


def test_scores_count_what_is_there():
    scores = judged()
    wanted = dict.fromkeys(ROLES["judge"].schema["properties"], 10.0)
    assert scores == wanted | {"support": 6.67}
    assert judged(outline="1. Soup")["instruction"] == 0.0
    none = [{"number": "1", "title": "x", "lines": 0, "cited": 0, "evidence": 0}]
    empty = judged(sections=none, counts={"strong_edges": 0})
    assert (empty["balance"], empty["breadth"], empty["support"], empty["insight"]) == (0, 0, 0, 0)


def write(model, *contents, previous="", lines=None):
    items = evidence(*contents)
    ids = [item["id"] for item in items]
    lines = lines or [
        {"text": "Kestrel", "evidence": [], "heading": True, "level": 1},
        {"text": "how the Kestrel hunts", "evidence": ids, "heading": False, "level": 1},
    ]
    section = {"number": "1", "title": "Kestrel", "outline": ""}
    data = {"section": section, "lines": lines, "evidence": items, "relations": [], "previous": previous}
    return ask(model, "write", question=QUESTION, language="en", **data)["text"]


def test_every_sentence_is_of_the_evidence_and_cites_it(model):
    text = write(
        model,
        "The Kestrel hunts over the Meadow.",
        "The Kestrel hovers in wind.",
        "Carrots and onions are cheap.",
    )
    assert text == "The Kestrel hunts over the Meadow. [1] The Kestrel hovers in wind. [2]"


def test_nothing_is_said_twice(model):
    said = "The Kestrel hunts over the Meadow. [1]"
    text = write(model, "The Kestrel hunts over the Meadow. The Kestrel hovers in wind.", previous=said)
    assert text == "The Kestrel hovers in wind. [1]"


def test_headings_without_text_are_left_out(model):
    lines = [
        {"text": "Kestrel", "evidence": [], "heading": True, "level": 1},
        {"text": "Empty", "evidence": [], "heading": True, "level": 2},
        {"text": "Prey", "evidence": [], "heading": True, "level": 2},
        {"text": "what the Kestrel hunts", "evidence": [1], "heading": False, "level": 2},
    ]
    assert (
        write(model, "The Kestrel hunts the vole.", lines=lines)
        == "### Prey\n\nThe Kestrel hunts the vole. [1]"
    )
    assert write(model, lines=lines[:3]) == ""


def test_quoted_markup_does_not_act(model):
    text = write(
        model,
        "The Kestrel hunts, as the old book says in [7], in many a place, and <script>alert(1) runs in none.",
    )
    assert [marker.ids for marker in find_markers(text)] == [(1,)]
    assert "\\<script>" in text


def test_a_digest_keeps_to_its_limit(model):
    text = " ".join(f"The Kestrel of place number {i} hunts the vole." for i in range(40))
    digest = ask(model, "digest", text=text, limit=50)["text"]
    assert 100 < len(digest) <= 200
    assert all(part.strip() in text for part in digest.split(". "))
    assert ask(model, "digest", text="", limit=50)["text"] == ""


def test_it_judges_a_citation(model):
    source = "The Kestrel hunts 9 voles a day over the Meadow."
    assert ask(model, "check", claim="The Kestrel hunts 9 voles a day.", source=source)["supported"] is True
    assert ask(model, "check", claim="The Kestrel hunts 8 voles a day.", source=source)["supported"] is False


def test_the_same_question_has_the_same_answer(model):
    other = ExtractiveModel(HashedWords())
    data = {"question": QUESTION, "query": "Kestrel", "title": "t", "text": PAGE}
    assert model.chat([], role="summarise", data=data) == other.chat([], role="summarise", data=data)
