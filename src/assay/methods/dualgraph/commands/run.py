"""`assay dualgraph run` and `gaps`: research a question, and see what is still missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.dualgraph.loop import Progress
    from assay.methods.dualgraph.records import ResearchConfig, SearchBackend
    from assay.methods.dualgraph.research_run import ResearchRun

Flag = Annotated[bool, Parameter(negative=())]
Many = Parameter(consume_multiple=True, negative=())


def run(
    question: str,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    docs: Annotated[tuple[Path, ...], Many] = (),
    search: Annotated[tuple[str, ...], Many] = (),
    llm: str = "extractive",
    resume: Flag = False,
    from_iteration: int | None = None,
    policy: Literal["dualgraph", "outline", "linear", "random_pair"] = "dualgraph",
    without: Annotated[tuple[Literal["enrich", "explore", "communities"], ...], Many] = (),
    degree_corrected: Flag = False,
    communities: Literal["louvain", "leiden"] = "louvain",
    max_iter: int = 5,
    kg_queries: int = 10,
    og_queries: int = 10,
    results: int = 5,
    early_stop: bool = True,
    rubric: Literal["low", "high"] = "low",
    checker: str = "combined",
    budget_tokens: int | None = None,
    budget_usd: float | None = None,
    budget_queries: int | None = None,
    budget_seconds: float | None = None,
    language: str = "en",
    keep_suspect: Flag = False,
    allow_host: Annotated[tuple[str, ...], Many] = (),
    deny_host: Annotated[tuple[str, ...], Many] = (),
    allow_private: Annotated[tuple[str, ...], Many] = (),
    concurrency: int = 5,
    seed: int = 0,
    record: Path | None = None,
    quiet: Flag = False,
) -> None:
    """Research a question and write a cited report, with its audit trail, to a folder.

    Parameters
    ----------
    question
        What to research.
    out
        The folder for report.md, report.html, the graphs, the citations and the database.
    docs
        Folders of documents to search; they are indexed first.
    search
        Other places to search: searxng:URL, tavily, serper, brave, bing, mcp:COMMAND, fixture:FILE.
    llm
        The chat model: extractive (none at all), openai:MODEL, openai:MODEL@URL, llama_cpp:URL,
        transformers:ID, replay:FILE.
    resume
        Go on with the run that is in the folder.
    from_iteration
        Go back to the copy of the database that this round left, and go on from there.
    policy
        What asks the questions: both graphs, the outline alone, the question reworded, or random pairs.
    without
        Leave out a part of the dual graph.
    degree_corrected
        Rank block-model gaps by the degrees of their ends too.
    communities
        How communities are found; leiden needs two GPL packages that are not installed by default.
    max_iter
        Rounds at most.
    kg_queries
        Queries a round from the knowledge graph, at most.
    og_queries
        Queries a round from the outline, at most.
    results
        Results read for a query.
    early_stop
        Stop when the outline is good enough or nothing new is found; --no-early-stop goes on to the end.
    rubric
        How good is good enough.
    checker
        How citations are checked: lexical, embedding, combined (both), llm, or nli:MODEL.
    budget_tokens
        Stop the research after so many tokens; writing the report comes on top.
    budget_usd
        Stop the research after so many US dollars.
    budget_queries
        Stop the research after so many searches.
    budget_seconds
        Stop the research after so many seconds.
    language
        The language of the report, as a tag such as en or de.
    keep_suspect
        Also use passages that look like instructions to a model.
    allow_host
        Read pages of these hosts only.
    deny_host
        Never read pages of these hosts.
    allow_private
        Hosts with private addresses that may be read.
    concurrency
        Searches, pages and calls of the model under way at once.
    seed
        The seed of everything random.
    record
        A folder for search.jsonl and chat.jsonl, from which --search fixture:FILE and --llm replay:FILE
        repeat the run without a network.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.methods.dualgraph.backends import open_backend
    from assay.methods.dualgraph.chat_models import open_model
    from assay.methods.dualgraph.commands.index import IndexBar
    from assay.methods.dualgraph.recording import RecordingBackend, RecordingChat
    from assay.methods.dualgraph.records import Budget, ResearchConfig, ServiceError
    from assay.methods.dualgraph.research_run import research
    from assay.methods.dualgraph.run_folder import restore_round

    console = Console(quiet=quiet, highlight=False, emoji=False)
    config = ResearchConfig(
        kg_queries=kg_queries,
        og_queries=og_queries,
        max_iter=max_iter,
        results_per_query=results,
        early_stop=early_stop,
        rubric=rubric,
        budget=Budget(budget_tokens, budget_usd, budget_queries, budget_seconds),
        language=language,
        checker=checker,
        seed=seed,
        policy=policy,
        without=without,
        degree_corrected=degree_corrected,
        communities=communities,
        keep_suspect=keep_suspect,
        concurrency=concurrency,
    )
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, {out} is a file")
    if not (docs or search):
        raise InputError("there is nothing to search in: pass --docs FOLDER or --search searxng:URL")
    _refuse_overwriting(out, resume or from_iteration is not None)
    try:
        with IndexBar(console, quiet) as bar:
            backends: list[SearchBackend] = [
                open_backend(
                    spec,
                    allow_hosts=allow_host,
                    deny_hosts=deny_host,
                    allow_private=allow_private,
                    progress=bar.show,
                )
                for spec in (*(f"local:{folder}" for folder in docs), *search)
            ]
        model = open_model(llm)
        if record is not None:
            model = RecordingChat(model, record / "chat.jsonl")
            backends = [RecordingBackend(backend, record / "search.jsonl") for backend in backends]
        if from_iteration is not None:
            restore_round(out, from_iteration)
        with _Watch(console, config) as watch:
            done = research(
                question, llm=model, search=backends, config=config, run_dir=out, observer=watch.show
            )
    except ServiceError as error:
        raise InputError(f"{error}; what was found is kept: go on with --resume") from error
    _print_result(console, done, out)


def gaps(
    run_folder: Annotated[Path, Parameter(name="RUN")], *, limit: int = 20, as_json: Flag = False
) -> None:
    """Print the relations that are weak or missing in a run's knowledge graph, without asking a model.

    Parameters
    ----------
    run_folder
        The folder of a run.
    limit
        How many to print.
    as_json
        Print JSON, one gap a line.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from assay.methods.dualgraph.research_run import ResearchRun

    if limit < 1:
        raise InputError(f"--limit must be at least 1, got {limit}")
    found = ResearchRun.load(run_folder).gaps(max(limit, 5))[:limit]
    console = Console(highlight=False, emoji=False)
    if as_json:
        for chain in found:
            row = {"type": chain.type, "nodes": chain.names, "score": chain.score, "reason": chain.reason}
            print(json.dumps(row, ensure_ascii=False))
        return
    if not found:
        console.print("The knowledge graph has no relations yet, so nothing can be said about gaps")
        return
    table = Table("#")
    for heading in ("gap", "between", "and", "score", "known"):
        table.add_column(heading, overflow="fold")
    for chain in found:
        cells = (str(chain.id), chain.type, *chain.names, f"{chain.score:.3g}", chain.content)
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    console.print(table)


def _refuse_overwriting(out: Path, resume: bool) -> None:
    from assay.methods.dualgraph.store import DATABASE

    exists = (out / DATABASE).exists()
    if exists and not resume:
        raise InputError(f"{out} has a run already: go on with --resume, or choose another --out")
    if resume and not exists and not out.is_dir():
        raise InputError(f"{out} has no run to go on with: leave out --resume")


class _Watch:
    """A line a finished round, and below them the step that is under way."""

    def __init__(self, console: Console, config: ResearchConfig) -> None:
        self._console = console
        self._rounds = config.max_iter
        self._status = console.status("Starting ...")

    def __enter__(self) -> _Watch:
        self._status.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._status.stop()

    def show(self, progress: Progress) -> None:
        """Show where the run is, how the graph has grown, and what it has cost."""
        money = "price unknown" if progress.usd is None else f"${progress.usd:.4f}"
        place = f"round {min(progress.iteration, self._rounds)}/{self._rounds}"
        if progress.iteration > self._rounds:
            place = "report"
        line = (
            f"{place}: {progress.queries} queries, {progress.evidence} pieces of evidence, "
            f"{progress.nodes} nodes, {progress.edges} relations, {progress.tokens} tokens, {money}"
        )
        self._status.update(f"{line}; {progress.step} done")
        if progress.step == "judge":
            self._console.print(line)


def _print_result(console: Console, done: ResearchRun, out: Path) -> None:
    from assay.methods.dualgraph.citations import effective, precision
    from assay.methods.dualgraph.pricing import PRICES_DATE
    from assay.methods.dualgraph.writing import ENDINGS

    share = precision(done.citations)
    checked = "no citations" if share is None else f"{share:.0%} of {len(done.citations)} citations hold"
    console.print(f"Ended because {ENDINGS.get(done.status, done.status).replace('**', '')}")
    money = "price unknown"
    if done.usd is not None:
        money = f"${done.usd:.4f}" + (f" at the prices of {PRICES_DATE}" if done.usd else "")
    console.print(
        f"{checked}, {effective(done.citations)} of them distinct; {done.tokens} tokens, {money}, "
        f"{sum(row.seconds for row in done.ledger):.1f} s of the model"
    )
    console.print(f"Report: {out / 'report.md'}; page: {out / 'report.html'}", soft_wrap=True, markup=False)
