"""The database of a run: transactions, what is written, and what two runs have in common."""

from __future__ import annotations

import sqlite3

import pytest

from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.records import (
    Chain,
    ChatResult,
    CitationRow,
    CorruptRun,
    Document,
    Evidence,
    LedgerRow,
    QueryRow,
    ResearchConfig,
    RoundRow,
    Usage,
)
from assay.methods.dualgraph.state import RunState, WrittenSection
from assay.methods.dualgraph.store import RunStore


def filled() -> RunState:
    """A state that uses every table."""
    state = RunState("Why?", ResearchConfig(without=("enrich",)), nonce="fixed")
    graph = state.graph
    u, v = graph.add_node("ü", True, ["alias"]), graph.add_node("v")
    graph.add_edge(u, v, "causes", [1, 2])
    graph.set_communities({u: 0, v: 1})
    graph.set_clusters({v: 3})
    state.outline = OutlineGraph.parse(
        "1. A <citation>id_2</citation>\n- b <citation>id_2, id_1</citation>\n1.1. C"
    )
    state.documents["d" * 64] = Document("https://x.example", "Title", "some text", "d" * 64, (0, 5))
    state.evidence[1] = Evidence(1, "Title", "https://x.example", "some", (0, 4), "d" * 64, 1)
    state.evidence[2] = Evidence(2, "Title", "https://x.example", "text", (5, 9), "d" * 64, 1, 2, True)
    state.bound = 2
    state.queries.append(QueryRow(1, 0, "why", "outline", 3, 2, ("shelf: 503",)))
    state.seen = {"https://x.example"}
    state.visited = {(u, v, "enrich")}
    state.chains.append((1, Chain(4, "enrich", (v, u), ("v", "ü"), 0.5, "weak", "ü causes v", True, False)))
    state.chains.append((1, Chain(2, "enrich", (u, v), ("ü", "v"), 0.25, "weak", "", True)))
    state.rounds.append(RoundRow(1, 1, 2, 2, 1, 1, 2, 1, 1, {"depth": 7.5}))
    state.sections.append(WrittenSection("1", "A", "Text [1]."))
    state.citations.append(
        CitationRow("1", "Text", 1, "https://x.example", "supported", 0.5, 0.75, "lexical")
    )
    state.warnings["invalid_answers"] = 2
    return state


def same(first: RunState, second: RunState) -> None:
    for name in first.__dataclass_fields__:
        if name == "graph":
            assert first.graph.nodes == second.graph.nodes
            assert first.graph.edges == second.graph.edges
        else:
            assert getattr(first, name) == getattr(second, name), name


class TestState:
    def test_everything_comes_back(self, tmp_path):
        store = RunStore(tmp_path / "run.sqlite")
        assert store.load() is None
        state = filled()
        store.commit(state, 1, "search", payload=[1], seconds=0.25)
        store.close()
        store = RunStore(tmp_path / "run.sqlite")
        same(store.load(), state)
        assert store.payload(1, "search") == [1]
        assert store.payload(1, "search", "other") is None
        assert store.seconds() == 0.25
        store.close()

    def test_only_changes_are_written_and_all_of_them(self, tmp_path):
        store = RunStore(tmp_path / "run.sqlite")
        state = filled()
        store.save(state)
        graph = state.graph
        third = graph.add_node("w")
        fourth = graph.add_node("x")
        graph.add_edge(third, fourth, "meets", [1])
        store.commit(state, 1, "a", payload=1, seconds=0)
        graph.merge([[2, third]])
        graph.add_edge(1, 2, "causes", [3])
        state.visited = {(1, 4, "enrich")}
        state.outline = OutlineGraph.parse("1. New")
        state.status, state.bound = "passed", 3
        state.warnings["invalid_answers"] += 1
        state.citations.append(CitationRow("1", "More", 2, "", "dangling"))
        before = store._db.total_changes
        store.commit(state, 1, "b", payload=1, seconds=0)
        assert store._db.total_changes - before < 25
        same(RunStore(tmp_path / "run.sqlite").load(), state)
        before = store._db.total_changes
        store.commit(state, 1, "c", payload=1, seconds=0)
        assert store._db.total_changes - before == 2  # the step, and the run's seconds

    def test_a_step_is_committed_once(self):
        store = RunStore(None)
        state = filled()
        store.commit(state, 1, "a", payload=1, seconds=0)
        state.warnings["more"] = 1
        with pytest.raises(sqlite3.IntegrityError):
            store.commit(state, 1, "a", payload=2, seconds=0)
        assert "more" not in store.load().warnings
        with pytest.raises(ValueError, match="null"):
            store.commit(state, 1, "b", payload=None, seconds=0)

    def test_a_failed_step_leaves_nothing(self):
        store = RunStore(None)
        store.save(filled())
        with pytest.raises(RuntimeError), store.transaction() as db:
            db.execute("DELETE FROM nodes")
            raise RuntimeError
        same(store.load(), filled())

    def test_reopening_forgets_the_end_only(self):
        store = RunStore(None)
        state = filled()
        state.status = "passed"
        store.commit(state, 1, "search", payload=1, seconds=0)
        store.commit(state, 3, "end", payload=1, seconds=0)
        again = store.reopen(3)
        assert (again.status, again.sections, again.citations) == ("running", [], [])
        assert again.evidence == state.evidence
        assert store.payload(1, "search") == 1
        assert store.payload(3, "end") is None


class TestDigest:
    def test_times_and_marks_do_not_count(self):
        digests = []
        for nonce, seconds in (("a", 1.0), ("b", 2.0)):
            store, state = RunStore(None), filled()
            state.nonce = nonce
            store.commit(state, 1, "search", payload=1, seconds=seconds)
            row = LedgerRow("1/x", "judge", "m", 10, 2, 0.5, seconds)
            store.keep_answer(f"hash {nonce}", ChatResult("answer", Usage(10, 2, True)), row)
            digests.append(store.digest())
        assert digests[0] == digests[1]
        state.warnings["another"] = 1
        store.save(state)
        assert store.digest() != digests[0]

    def test_answers_come_back(self):
        store = RunStore(None)
        store.save(filled())
        result = ChatResult("answer", Usage(10, 2, True))
        row = LedgerRow("1/x", "judge", "m", 10, 2, None, 0.5)
        store.keep_answer("hash", result, row)
        assert store.answer("hash") == result
        assert store.answer("other") is None
        assert store.ledger() == [row]


class TestDamage:
    @pytest.mark.parametrize(
        "content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\x00" * 2000]
    )
    def test_what_is_no_database_is_left_alone(self, tmp_path, content):
        path = tmp_path / "run.sqlite"
        path.write_bytes(content)
        with pytest.raises(CorruptRun, match="left as it is"):
            RunStore(path)
        assert path.read_bytes() == content

    def test_a_foreign_database_is_refused(self, tmp_path):
        path = tmp_path / "run.sqlite"
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE other (x)")
        db.close()
        with pytest.raises(CorruptRun, match="version 0"):
            RunStore(path)

    def test_content_that_makes_no_sense(self, tmp_path):
        path = tmp_path / "run.sqlite"
        store = RunStore(path)
        store.save(filled())
        store._db.execute('UPDATE runs SET config = \'{"seed": 1, "magic": 2}\'')
        with pytest.raises(CorruptRun, match="another version"):
            store.load()
        store._db.execute("UPDATE runs SET config = '{'")
        with pytest.raises(CorruptRun):
            store.load()

    def test_copies_are_complete(self, tmp_path):
        store = RunStore(tmp_path / "run.sqlite")
        store.commit(filled(), 1, "a", payload=1, seconds=0)
        store.backup(tmp_path / "copy.sqlite")
        copy = RunStore(tmp_path / "copy.sqlite")
        same(copy.load(), filled())
        assert copy.digest() == store.digest()
        assert {path.name for path in tmp_path.glob(".*")} == set()
