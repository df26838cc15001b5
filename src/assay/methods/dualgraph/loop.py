"""The loop: search, knowledge graph, outline and judgement in turns, every step of it resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.methods.dualgraph import planning
from assay.methods.dualgraph.checkers import Checker
from assay.methods.dualgraph.extraction import batches, extract, named_or_entailed
from assay.methods.dualgraph.gathering import gather, search, usable
from assay.methods.dualgraph.judging import judge, passed, saturated
from assay.methods.dualgraph.merging import cluster_concepts, merge_concepts
from assay.methods.dualgraph.model_calls import BudgetSpent, ModelCaller
from assay.methods.dualgraph.policies import GRAPH_POLICIES, Similarity, update_communities
from assay.methods.dualgraph.records import RoundRow, SearchBackend
from assay.methods.dualgraph.state import RunState
from assay.methods.dualgraph.store import RunStore
from assay.methods.dualgraph.writing import write_section

Step = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """What an observer is told after every step.

    Attributes:
        iteration: the round; 0 is the preparation, one more than the last round the report.
        step: the step that is finished.
        queries, evidence, nodes, edges: how many there are.
        tokens: spent so far.
        usd: spent so far; None if the price is unknown.
        calls: answered by the model in this session.
    """

    iteration: int
    step: str
    queries: int
    evidence: int
    nodes: int
    edges: int
    tokens: int
    usd: float | None
    calls: int


Observer = Callable[[Progress], None]


class ResearchLoop:
    """One run, from where it stands to its report's sections.

    Args:
        state: what is known; changed by every step.
        store: commits every step.
        caller: asks the model.
        backends: where to search.
        similarity: embeds names.
        checker: checks citations.
        observer: told after every committed step.
        on_round: called when a round was committed, with its number.
    """

    def __init__(
        self,
        state: RunState,
        store: RunStore,
        caller: ModelCaller,
        backends: Sequence[SearchBackend],
        similarity: Similarity,
        checker: Checker,
        observer: Observer | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self.state = state
        self.store = store
        self.caller = caller
        self.backends = backends
        self.similarity = similarity
        self.checker = checker
        self.supports = named_or_entailed(checker)
        self.observer = observer
        self.on_round = on_round

    def run(self) -> None:
        """Research until a rule says stop, then write the sections.

        Raises:
            SearchFailed: every query of a round failed.
            ServiceError: the model's service failed.
        """
        last = self.state.config.max_iter + 1
        ending = self.store.payload(last, "end")
        if ending is None:
            try:
                status = self._rounds()
            except BudgetSpent:
                # The unfinished step leaves nothing, so that a larger budget can go on from here.
                self._reload()
                status = "budget"
            self.state.status = status
            self._step(last, "end", lambda: {"status": status})
        self.caller.unlimited = True
        self._improve(last)
        self._write(last)

    def _rounds(self) -> str:
        config = self.state.config
        self._step(0, "outline_init", self._first_outline)
        planned = self._step(0, "outline_queries", self._first_queries)
        found = self._search(0, planned)
        self._grow(0, found)
        planned = self._plan(0)
        for iteration in range(1, config.max_iter + 1):
            found = self._search(iteration, planned)
            self._grow(iteration, found)
            if config.policy != "linear":
                self._improve(iteration)
            if iteration < config.max_iter:
                planned = self._plan(iteration)
            scores = self._step(iteration, "judge", lambda i=iteration: self._judge(i))
            if config.early_stop and passed(scores, config.rubric):
                return "passed"
            if config.early_stop and saturated([r for r in self.state.rounds if r.iteration <= iteration]):
                return "saturated"
        return "max_iter"

    def _first_outline(self) -> dict[str, Any]:
        self.state.outline = planning.first_outline(self.state, self.caller)
        return {"outline": self.state.outline.render()}

    def _first_queries(self) -> list[list[str]]:
        queries = planning.outline_queries(self.state, self.caller, (), step="0/outline_queries")
        return [[query, "outline"] for query in queries or [self.state.question]]

    def _search(self, iteration: int, planned: Sequence[Sequence[str]]) -> list[tuple[str, list[int]]]:
        """Search and read: by query, the ids of new evidence."""
        queries = [query for query, _ in planned]
        if not queries:
            return []
        found = self._step(
            iteration,
            "search",
            lambda: search(self.state, self.backends, self._affordable(queries)),
        )
        origins = {pair[0]: pair[1] for pair in planned}
        gathered = self._step(
            iteration,
            "gather",
            lambda: gather(
                self.state, self.caller, self.backends, found, iteration=iteration, origins=origins
            ),
        )
        return [(query, ids) for query, ids in gathered]

    def _grow(self, iteration: int, found: Sequence[tuple[str, list[int]]]) -> None:
        """The knowledge graph with new evidence."""
        if self.state.config.policy not in GRAPH_POLICIES:
            return
        for number, batch in enumerate(batches(found)):
            step = f"{iteration}/extract/{number}"
            self._step(iteration, "extract", lambda b=batch, s=step: self._extract(b, s), key=str(number))
        self._step(iteration, "merge", lambda: self._merge(iteration))
        self._step(iteration, "communities", self._communities)

    def _extract(self, batch: Sequence[tuple[str, list[int]]], step: str) -> dict[str, int]:
        extract(self.state, self.caller, batch, step=step, supports=self.supports)
        return {"nodes": len(self.state.graph.nodes), "edges": len(self.state.graph.edges)}

    def _merge(self, iteration: int) -> dict[str, int]:
        cluster_concepts(self.state.graph, self.similarity)
        moved = merge_concepts(self.state, self.caller, step=f"{iteration}/merge")
        return {str(old): new for old, new in moved.items()}

    def _communities(self) -> dict[str, int]:
        update_communities(self.state.graph, self.state.config)
        labels = {node.community_id for node in self.state.graph.nodes.values()} - {None}
        return {"communities": len(labels)}

    def _improve(self, iteration: int) -> None:
        """Bind evidence that the outline has not seen yet; linear search does so only before it writes."""
        self._step(iteration, "outline", lambda: self._outline(f"{iteration}/outline"))

    def _outline(self, step: str) -> dict[str, int]:
        state = self.state
        new = [i for i in sorted(usable(state)) if i > state.bound]
        state.outline = planning.improved_outline(state, self.caller, new, step=step)
        state.bound = max(state.evidence, default=0)
        return {"lines": len(state.outline.lines()), "offered": len(new)}

    def _plan(self, iteration: int) -> list[list[str]]:
        """The queries of the next round, each with what asked for it."""
        return self._step(iteration, "plan", lambda: self._planned(iteration))

    def _planned(self, iteration: int) -> list[list[str]]:
        state, caller = self.state, self.caller
        if state.config.policy == "linear":
            queries = planning.linear_queries(state, caller, step=f"{iteration}/linear_queries")
            return [[query, "question"] for query in queries]
        asked = planning.graph_queries(state, caller, self.similarity, iteration=iteration)
        more = planning.outline_queries(state, caller, asked, step=f"{iteration}/outline_queries")
        origins = dict.fromkeys(more, "outline") | dict.fromkeys(asked, "graph")
        return [[query, origins[query]] for query in planning.fresh_queries([*asked, *more], ())]

    def _affordable(self, queries: list[str]) -> list[str]:
        """As many planned queries as the budget allows."""
        self.caller.check_budget()
        limit = self.state.config.budget.queries
        if limit is None:
            return queries
        left = limit - len(self.state.queries)
        if left <= 0:
            raise BudgetSpent(f"the budget of {limit} queries is spent")
        return queries[:left]

    def _judge(self, iteration: int) -> dict[str, float]:
        state = self.state
        scores = judge(state, self.caller, iteration=iteration)
        lines = [line for line in state.outline.lines() if line.place >= 0]
        labels = {node.community_id for node in state.graph.nodes.values()} - {None}
        state.rounds.append(
            RoundRow(
                iteration=iteration,
                queries=len(state.queries),
                evidence=len(usable(state)),
                nodes=len(state.graph.nodes),
                edges=len(state.graph.edges),
                strong_edges=state.graph.strong_pairs(),
                communities=len(labels),
                cited_lines=sum(bool(line.evidence) for line in lines),
                lines=len(lines),
                scores=scores,
            )
        )
        return scores

    def _write(self, last: int) -> None:
        for section in self.state.outline.top_level():
            self._step(last, "write", lambda s=section: self._section(s, last), key=section.number)

    def _section(self, section: Any, last: int) -> dict[str, int]:
        step = f"{last}/write/{section.number}"
        written, rows = write_section(self.state, self.caller, section, self.checker, step=step)
        self.state.sections.append(written)
        self.state.citations += rows
        return {"citations": len(rows)}

    def _step(self, iteration: int, name: str, work: Step, key: str = "") -> Any:
        """Do a step and commit it, unless it is done; either way, what it leaves."""
        done = self.store.payload(iteration, name, key)
        if done is not None:
            return done
        started = time.monotonic()
        payload = work()
        seconds = time.monotonic() - started
        self.store.commit(self.state, iteration, name, key, payload=payload, seconds=seconds)
        if name == "judge" and self.on_round is not None:
            self.on_round(iteration)
        if self.observer is not None:
            self.observer(self._progress(iteration, f"{name} {key}".strip()))
        return payload

    def _progress(self, iteration: int, step: str) -> Progress:
        state, caller = self.state, self.caller
        return Progress(
            iteration=iteration,
            step=step,
            queries=len(state.queries),
            evidence=len(state.evidence),
            nodes=len(state.graph.nodes),
            edges=len(state.graph.edges),
            tokens=caller.tokens,
            usd=caller.usd,
            calls=caller.calls,
        )

    def _reload(self) -> None:
        state = self.store.load()
        if state is None:
            raise RuntimeError("a started run is always in its store")
        self.state = self.caller.state = state
