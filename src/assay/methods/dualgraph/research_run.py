"""The public entry: `research` answers a question, `ResearchRun` is what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from assay.errors import InputError
from assay.files import write_text
from assay.methods.dualgraph.checkers import Checker, load_checker
from assay.methods.dualgraph.embeddings import Encoder, default_encoder
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.loop import Observer, ResearchLoop
from assay.methods.dualgraph.model_calls import CountedModel, ModelCaller, sum_known
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.policies import plan_chains, update_communities
from assay.methods.dualgraph.records import (
    Chain,
    ChatModel,
    CitationRow,
    Document,
    Evidence,
    LedgerRow,
    QueryRow,
    ResearchConfig,
    RoundRow,
    SearchBackend,
    SearchFailed,
)
from assay.methods.dualgraph.run_folder import REPORT, forget_rounds, locked, round_copy
from assay.methods.dualgraph.sentences import content_words
from assay.methods.dualgraph.state import RunState
from assay.methods.dualgraph.store import DATABASE, RunStore
from assay.methods.dualgraph.writing import report

MAY_CHANGE = ("budget", "max_iter", "early_stop", "concurrency")
"""Settings that may differ when a run is resumed."""


class ResearchRun:
    """A run as it stands: the report, both graphs, the evidence, and what everything cost.

    Args:
        state: what the run knows.
        ledger: the model's calls.
        folder: where it lies; None for a run in memory.
    """

    def __init__(self, state: RunState, ledger: Sequence[LedgerRow], folder: Path | None) -> None:
        self._state = state
        self.ledger: list[LedgerRow] = list(ledger)
        self.folder = folder

    @classmethod
    def load(cls, folder: Path | str) -> ResearchRun:
        """Read a run folder; nothing in it is changed.

        Raises:
            InputError: there is no run in the folder.
            CorruptRun: its database can't be read.
        """
        path = Path(folder)
        if not (path / DATABASE).is_file():
            raise InputError(f"{path} holds no run: it has no {DATABASE}")
        store = RunStore(path / DATABASE)
        try:
            state = store.load()
            ledger = store.ledger()
        finally:
            store.close()
        if state is None:
            raise InputError(f"{path} holds a run that was never started: start it again")
        return cls(state, ledger, path)

    @property
    def question(self) -> str:
        """What was researched."""
        return self._state.question

    @property
    def config(self) -> ResearchConfig:
        """How it was researched."""
        return self._state.config

    @property
    def status(self) -> str:
        """Why the run ended (`records.RunStatus`)."""
        return self._state.status

    @property
    def report(self) -> str:
        """The report in Markdown."""
        return report(self._state)

    @property
    def outline(self) -> OutlineGraph:
        """The outline, bound to evidence."""
        return self._state.outline

    @property
    def kg(self) -> KnowledgeGraph:
        """The knowledge graph."""
        return self._state.graph

    @property
    def evidence(self) -> dict[int, Evidence]:
        """Verbatim passages by id."""
        return self._state.evidence

    @property
    def documents(self) -> dict[str, Document]:
        """Snapshots of what was read, by SHA-256."""
        return self._state.documents

    @property
    def citations(self) -> list[CitationRow]:
        """The check of every marker that the model wrote."""
        return self._state.citations

    @property
    def queries(self) -> list[QueryRow]:
        """Executed queries in order."""
        return self._state.queries

    @property
    def rounds(self) -> list[RoundRow]:
        """How the run grew."""
        return self._state.rounds

    @property
    def chains(self) -> list[Chain]:
        """The chains that were asked about, in order."""
        return [chain for _, chain in self._state.chains]

    @property
    def warnings(self) -> dict[str, int]:
        """How often something went wrong without stopping the run."""
        return dict(self._state.warnings)

    @property
    def tokens(self) -> int:
        """Tokens of all calls."""
        return sum(row.prompt_tokens + row.completion_tokens for row in self.ledger)

    @property
    def usd(self) -> float | None:
        """Price of all calls; None if one is unknown."""
        return sum_known([row.usd for row in self.ledger])

    def gaps(self, limit: int = 60) -> list[Chain]:
        """What is still weak or missing, best first, without asking a model.

        Args:
            limit: chains at most, at least 5.
        """
        config = replace(self.config, policy="dualgraph", without=(), max_chains=limit)
        graph = KnowledgeGraph(self.kg.nodes.values(), self.kg.edges.values(), self.kg.used)
        update_communities(graph, config)
        return plan_chains(graph, self._state.visited, config=config, similarity=default_encoder().encode)

    def to_html(self, path: Path | str) -> None:
        """Write the one-file page with both graphs, the evidence and the ledger."""
        from assay.methods.dualgraph.page import write_page

        write_page(self, Path(path))


def research(
    question: str,
    *,
    llm: ChatModel | str,
    search: Sequence[SearchBackend | str],
    config: ResearchConfig | None = None,
    run_dir: Path | str | None = None,
    resume: bool = True,
    encoder: Encoder | None = None,
    checker: Checker | None = None,
    observer: Observer | None = None,
) -> ResearchRun:
    """Answer a question with a cited report.

    Args:
        question: what to research.
        llm: a chat model, or its name (`extractive`, `openai:MODEL@URL`, ...).
        search: search back ends, or their names (`local:FOLDER`, `searxng:URL`, ...).
        config: how; defaults if None.
        run_dir: the folder for the database, the report and the exports; None keeps the run in memory.
        resume: go on with a run that is in the folder; False refuses a folder that has one.
        encoder: embeds names; MiniLM if None.
        checker: checks citations; the one that `config` names if None.
        observer: told after every committed step.

    Raises:
        InputError: the question is empty, nothing to search in, or the folder has another question's run.
        RunLocked: another process works on the folder.
        CorruptRun: the folder's database can't be read.
        SearchFailed: every query of a round failed; the run can be resumed.
        ServiceError: the model's service failed; the run can be resumed.
    """
    if not content_words(question):
        raise InputError(f"the question has no word to search for: {question!r}")
    if not search:
        raise InputError("there is nothing to search in: pass at least one search back end")
    model = _model(llm)
    backends = [_backend(item) for item in search]
    names = [backend.name for backend in backends]
    if len(set(names)) < len(names):
        raise InputError(f"a search back end is named twice: {', '.join(names)}")
    config = config or ResearchConfig()
    encoder = encoder or default_encoder()
    counted = CountedModel(model)
    checker = checker or load_checker(config.checker, model=counted, encoder=encoder)
    folder = None if run_dir is None else Path(run_dir)
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(folder))
            if not resume and (folder / DATABASE).exists():
                raise InputError(f"{folder} has a run already: resume it, or choose another folder")
        store = RunStore(None if folder is None else folder / DATABASE)
        stack.callback(store.close)
        state = _start(store, question, config)
        caller = counted.caller = ModelCaller(model, store, state)

        def copy_round(iteration: int) -> None:
            if folder is not None:
                target = round_copy(folder, iteration)
                target.parent.mkdir(exist_ok=True)
                store.backup(target)

        loop = ResearchLoop(
            state, store, caller, backends, encoder.encode, checker, observer, on_round=copy_round
        )
        try:
            loop.run()
        except SearchFailed:
            _note_failure(store)
            raise
        run = ResearchRun(loop.state, store.ledger(), folder)
        if folder is not None:
            _write_files(run, folder)
        return run


def _start(store: RunStore, question: str, config: ResearchConfig) -> RunState:
    """The state to go on from: a new one, or the stored one if it belongs to this question."""
    state = store.load()
    if state is None:
        state = RunState(question, config)
        store.save(state)
        return state
    if state.question != question:
        raise InputError(f"the folder has the run of another question: {state.question!r}")
    kept = {name: getattr(config, name) for name in MAY_CHANGE}
    if replace(state.config, **kept) != config:
        raise InputError(
            f"the run was started with other settings; only {', '.join(MAY_CHANGE)} may change when it is "
            "resumed: use the same settings, or another folder"
        )
    if config.max_iter < state.config.max_iter:
        raise InputError(
            f"the run was started with {state.config.max_iter} rounds; {config.max_iter} are fewer: a run "
            "can only be resumed with as many or more"
        )
    finished = state.status in ("passed", "saturated", "max_iter", "budget")
    if state.config != config and finished:
        state = store.reopen(state.config.max_iter + 1)
    state.config = config
    if state.status == "search_failed":
        state.status = "running"
    store.save(state)
    return state


def _note_failure(store: RunStore) -> None:
    """The last committed state, marked: what the failed step did in memory is left out."""
    state = store.load()
    if state is not None:
        state.status = "search_failed"
        store.save(state)


def _write_files(run: ResearchRun, folder: Path) -> None:
    from assay.methods.dualgraph.exports import write_exports

    write_text(folder / REPORT, run.report)
    write_exports(run, folder)
    run.to_html(folder / "report.html")
    forget_rounds(folder)


def _model(llm: ChatModel | str) -> ChatModel:
    if not isinstance(llm, str):
        return llm
    from assay.methods.dualgraph.chat_models import open_model

    return open_model(llm)


def _backend(item: SearchBackend | str) -> SearchBackend:
    if not isinstance(item, str):
        return item
    from assay.methods.dualgraph.backends import open_backend

    return open_backend(item)
