"""`assay dualgraph verify` and `show`: check the citations of a report, and look at a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from assay.methods.dualgraph.audit import Audit
    from assay.methods.dualgraph.checkers import Checker
    from assay.methods.dualgraph.research_run import ResearchRun

Flag = Annotated[bool, Parameter(negative=())]
Many = Parameter(consume_multiple=True, negative=())
BELOW = 1


def verify(
    report: Annotated[Path, Parameter(name="REPORT")],
    *,
    min_precision: float = 0.9,
    checker: str = "combined",
    llm: str | None = None,
    docs: Annotated[tuple[Path, ...], Many] = (),
    fetch: Flag = False,
    allow_host: Annotated[tuple[str, ...], Many] = (),
    allow_private: Annotated[tuple[str, ...], Many] = (),
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    quiet: Flag = False,
) -> int:
    """Check every citation of a report; the exit code is 1 when too few hold.

    Parameters
    ----------
    report
        The folder of a run, or any Markdown file with numbered references or links.
    min_precision
        The share of citations that has to hold, from 0 to 1.
    checker
        How a citation is checked: lexical, embedding, combined, llm, or nli:MODEL.
    llm
        The model of the checker llm, such as openai:MODEL or openai:MODEL@URL.
    docs
        Folders with the sources of a Markdown file.
    fetch
        Also read the pages of the web that a Markdown file cites.
    allow_host
        Read pages of these hosts only.
    allow_private
        Hosts with private addresses that may be read.
    out
        A CSV file for all citations with their scores.
    quiet
        Print nothing.
    """
    from rich.console import Console

    from assay.files import write_text
    from assay.methods.dualgraph.audit import audit_report, audit_run
    from assay.methods.dualgraph.exports import citations_csv
    from assay.methods.dualgraph.records import ServiceError

    if not 0 <= min_precision <= 1:
        raise InputError(f"--min-precision must be from 0 to 1, got {min_precision}")
    if not report.exists():
        raise InputError(f"{report} does not exist: pass the folder of a run or a Markdown file")
    if report.is_dir() and (docs or fetch):
        raise InputError("a run is checked against the pages that it stored: leave out --docs and --fetch")
    console = Console(quiet=quiet, highlight=False)
    chosen = _checker(checker, llm)
    try:
        with console.status("Checking citations ..."):
            if report.is_dir():
                audit = audit_run(report, chosen)
            elif fetch:
                from assay.methods.dualgraph.fetching import Fetcher

                fetcher = Fetcher(allow_hosts=allow_host, allow_private=allow_private)
                audit = audit_report(report, chosen, docs=docs, fetch=fetcher.fetch)
                fetcher.close()
            else:
                audit = audit_report(report, chosen, docs=docs)
    except ServiceError as error:
        raise InputError(str(error)) from error
    if out is not None:
        write_text(out, citations_csv(audit.rows))
    _print_audit(console, audit)
    if audit.unread and all(row.status == "dangling" for row in audit.rows):
        number, reason = next(iter(audit.unread.items()))
        raise InputError(
            f"no source of {report} could be read, [{number}] for example: {reason}; pass --docs FOLDER for "
            "files or --fetch for pages of the web"
        )
    share = audit.precision
    enough = share is not None and share >= min_precision
    if share is None:
        console.print("The report cites nothing")
    elif not enough:
        console.print(f"That is below --min-precision {min_precision:g}", style="red")
    return 0 if enough else BELOW


def show(
    run_folder: Annotated[Path, Parameter(name="RUN")],
    *,
    html: Flag = False,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> None:
    """Show a run: what it found and its report, or its page with both graphs.

    Parameters
    ----------
    run_folder
        The folder of a run, finished or not.
    html
        Write the page instead of printing the report.
    out
        Where to write the page; RUN/report.html by default.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from assay.methods.dualgraph.research_run import ResearchRun

    console = Console(highlight=False)
    run = ResearchRun.load(run_folder)
    if out is not None and not html:
        raise InputError("--out is for the page: pass --html too")
    if html:
        target = out or run_folder / "report.html"
        with console.status("Drawing ..."):
            run.to_html(target)
        console.print(str(target), soft_wrap=True, markup=False)
        return
    _print_run(console, run)
    if run.report:
        console.print(Markdown(run.report, hyperlinks=False))


def _checker(name: str, llm: str | None) -> Checker:
    from assay.methods.dualgraph.chat_models import open_model
    from assay.methods.dualgraph.checkers import load_checker

    if llm is not None and name != "llm":
        raise InputError(f"--llm is for --checker llm, not for {name}")
    return load_checker(name, model=None if llm is None else open_model(llm))


def _print_audit(console: Console, audit: Audit) -> None:
    from rich.table import Table

    words = {"dangling": "no such source", "unsupported": "not in its source"}
    if audit.faults:
        table = Table("section", "sentence", "source", "fault", "score")
        for row in audit.faults:
            cells = (row.section, row.sentence, f"[{row.evidence_id}]", words[row.status], f"{row.score:.2f}")
            table.add_row(*(cell.replace("[", r"\[") for cell in cells))
        console.print(table)
    for number, reason in audit.unread.items():
        console.print(f"[{number}] was not checked: {reason}", style="yellow", markup=False, soft_wrap=True)
    if audit.rows:
        console.print(
            f"{len(audit.rows) - len(audit.faults)} of {len(audit.rows)} citations hold "
            f"({audit.precision:.1%}), {audit.effective} of them distinct; {audit.unchecked} not checked"
        )


def _print_run(console: Console, run: ResearchRun) -> None:
    from assay.methods.dualgraph.writing import ENDINGS

    money = "price unknown" if run.usd is None else f"${run.usd:.4f}"
    ending = ENDINGS.get(run.status, f"it is {run.status.replace('_', ' ')}").replace("**", "")
    console.print(run.question, style="bold", markup=False)
    console.print(f"Status: {ending}", markup=False)
    console.print(
        f"{len(run.queries)} searches, {len(run.evidence)} pieces of evidence, {len(run.kg.nodes)} entities, "
        f"{len(run.kg.edges)} relations, {run.tokens} tokens, {money}\n"
    )
