"""Searching and reading: from queries to evidence, always a verbatim passage of a stored snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import InputError
from assay.methods.dualgraph.concurrency import concurrent_map, search_many
from assay.methods.dualgraph.model_calls import ModelCaller
from assay.methods.dualgraph.records import (
    Document,
    Evidence,
    Hit,
    InvalidOutput,
    QueryRow,
    ReadFailed,
    SearchBackend,
    SearchFailed,
    ServiceError,
)
from assay.methods.dualgraph.safety import suspect_spans
from assay.methods.dualgraph.state import RunState

OFFERED = 2
"""Results asked for, as a multiple of those that are read."""

PAGE_CHARS = 60_000
"""Of a page without a known passage, so much is read."""

Span = tuple[int, int]


def search(
    state: RunState, backends: Sequence[SearchBackend], queries: Sequence[str]
) -> list[dict[str, Any]]:
    """What the queries bring, as JSON values: query, hits, errors. The state is not changed.

    Raises:
        SearchFailed: there are queries, and every one failed.
        AuthenticationFailed: a key was refused and nothing else answered.
    """
    outcomes = search_many(
        backends,
        queries,
        k=OFFERED * state.config.results_per_query,
        exclude=frozenset(state.seen),
        concurrency=state.config.concurrency,
    )
    failed = [outcome for outcome in outcomes if outcome.errors and not outcome.hits]
    if outcomes and len(failed) == len(outcomes):
        raise SearchFailed(f"all {len(failed)} queries of this round failed; first: {failed[0].errors[0]}")
    return [
        {
            "query": outcome.query,
            "errors": list(outcome.errors),
            "hits": [
                {
                    "title": hit.title,
                    "url": hit.url,
                    "snippet": hit.snippet,
                    "score": hit.score,
                    "span": hit.span and list(hit.span),
                    "backend": hit.backend,
                }
                for hit in outcome.hits
            ],
        }
        for outcome in outcomes
    ]


def gather(
    state: RunState,
    caller: ModelCaller,
    backends: Sequence[SearchBackend],
    found: Sequence[Mapping[str, Any]],
    *,
    iteration: int,
    origins: Mapping[str, str],
) -> list[tuple[str, list[int]]]:
    """Choose results, read them, keep what helps as evidence, and note the queries as executed.

    Args:
        state: gets documents, evidence, queries and seen results.
        caller: asks the model.
        backends: they read what they found.
        found: what `search` gave.
        iteration: the round.
        origins: what asked for a query, by its words.

    Returns:
        By query, the ids of new evidence.

    Raises:
        InputError: a result is of a back end that is not there any more.
    """
    step = f"{iteration}/gather"
    chosen: list[tuple[int, Hit]] = []
    for place, outcome in enumerate(found):
        hits = [_hit(values) for values in outcome["hits"]]
        fresh = [hit for hit in hits if hit.key not in state.seen]
        for hit in _select(state, caller, outcome["query"], fresh, step):
            state.seen.add(hit.key)
            chosen.append((place, hit))
    by_name = {backend.name: backend for backend in backends}
    unknown = {hit.backend for _, hit in chosen} - set(by_name)
    if unknown:
        raise InputError(
            f"results of {', '.join(sorted(unknown))} are still to be read: resume with the same search back "
            f"ends, spelt as before (now: {', '.join(by_name)})"
        )
    documents = concurrent_map(
        lambda item: by_name[item[1].backend].read(item[1]), chosen, state.config.concurrency
    )
    pages: list[tuple[int, Document, Span]] = []
    for (place, hit), document in zip(chosen, documents, strict=True):
        if isinstance(document, ServiceError):
            caller.warn("unread_pages" if isinstance(document, ReadFailed) else "failed_reads")
            continue
        if document.sha256 in state.documents and hit.span is None:
            caller.warn("duplicate_pages")
            continue
        kept = state.documents.setdefault(document.sha256, document)
        pages.append((place, kept, hit.span or (0, min(len(kept.text), PAGE_CHARS))))
    inputs = [
        {
            "question": state.question,
            "query": found[place]["query"],
            "title": document.title,
            "text": document.text[span[0] : span[1]],
        }
        for place, document, span in pages
    ]
    answers = caller.ask_many("summarise", inputs, step=step)
    first_query = len(state.queries) + 1
    new: list[list[int]] = [[] for _ in found]
    for (place, document, span), answer in zip(pages, answers, strict=True):
        if not isinstance(answer, InvalidOutput) and answer["useful"]:
            quotes = quoted_spans(document.text, span, answer["evidence"])
            if len(quotes) < len(answer["evidence"]):
                caller.warn("quotes_not_verbatim", len(answer["evidence"]) - len(quotes))
            new[place] += _keep(state, caller, document, _joined(document.text, quotes), first_query + place)
    for place, outcome in enumerate(found):
        state.queries.append(
            QueryRow(
                id=first_query + place,
                iteration=iteration,
                text=outcome["query"],
                origin=origins.get(outcome["query"], "question"),
                hits=len(outcome["hits"]),
                evidence=len(new[place]),
                errors=tuple(outcome["errors"]),
            )
        )
        if outcome["errors"]:
            caller.warn("failed_searches", len(outcome["errors"]))
    return [(outcome["query"], ids) for outcome, ids in zip(found, new, strict=True)]


def quoted_spans(text: str, window: Span, quotes: Iterable[str]) -> list[Span]:
    """Where a model's quotes are in the text; quotes that are not there word for word are left out.

    White space, letter case and the shape of quotation marks and dashes may differ.

    Args:
        text: the whole document.
        window: the characters that the model was shown.
        quotes: what it copied.
    """
    shown = text[window[0] : window[1]]
    found: list[Span] = []
    for quote in quotes:
        words = quote.split()
        if not words:
            continue
        at = shown.find(quote.strip())
        if at >= 0:
            found.append((window[0] + at, window[0] + at + len(quote.strip())))
        elif match := re.search(r"\s+".join(map(_loosely, words)), shown, re.IGNORECASE):
            found.append((window[0] + match.start(), window[0] + match.end()))
    return found


def usable(state: RunState) -> dict[int, Evidence]:
    """The evidence that may be used: what talks to a model is left out, unless it was asked to be kept."""
    keep = state.config.keep_suspect
    return {i: evidence for i, evidence in state.evidence.items() if keep or not evidence.suspect}


def evidence_values(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Evidence as the tasks of `prompts.ROLES` take it."""
    return [{"id": e.id, "title": e.source_title, "content": e.content} for e in evidence]


def _select(state: RunState, caller: ModelCaller, query: str, fresh: list[Hit], step: str) -> list[Hit]:
    """The results to read. Passages of an index are ranked well enough; of web pages, the model chooses."""
    limit = state.config.results_per_query
    if len(fresh) <= limit or all(hit.span is not None for hit in fresh):
        return fresh[:limit]
    hits = [
        {"id": i, "title": hit.title, "url": hit.url, "snippet": hit.snippet}
        for i, hit in enumerate(fresh, start=1)
    ]
    data = {"question": state.question, "query": query, "hits": hits, "limit": limit}
    try:
        ids = caller.ask("select_urls", data, step=step)["ids"]
    except InvalidOutput:
        return fresh[:limit]
    wanted = [i for i in dict.fromkeys(ids) if 1 <= i <= len(fresh)]
    if len(wanted) < len(set(ids)):
        caller.warn("unknown_results", len(set(ids)) - len(wanted))
    return [fresh[i - 1] for i in wanted[:limit]]


def _keep(
    state: RunState, caller: ModelCaller, document: Document, spans: Iterable[Span], query_id: int
) -> list[int]:
    """Store passages as evidence; what is within known evidence of the same snapshot is not new."""
    known = [e.span for e in state.evidence.values() if e.sha256 == document.sha256]
    new: list[int] = []
    for start, end in spans:
        if any(low <= start and end <= high for low, high in known):
            continue
        content = document.text[start:end]
        evidence = Evidence(
            id=len(state.evidence) + 1,
            source_title=document.title,
            source_url=document.url,
            content=content,
            span=(start, end),
            sha256=document.sha256,
            query_id=query_id,
            page=document.page_at(start),
        )
        if suspect_spans(content):
            caller.warn("suspect_passages")
            evidence = replace(evidence, suspect=True)
        state.evidence[evidence.id] = evidence
        known.append(evidence.span)
        if not evidence.suspect or state.config.keep_suspect:
            new.append(evidence.id)
    return new


def _joined(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans in order of the text, those that touch or overlap as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and not text[joined[-1][1] : start].strip():
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _loosely(word: str) -> str:
    """A pattern for a word whose quotation marks and dashes may have another shape."""
    pattern = re.escape(word)
    pattern = re.sub(r"\\?['’‘`]", "['’‘`]", pattern)
    pattern = re.sub(r"\\?[\"“”„]", '["“”„]', pattern)
    return re.sub(r"\\?[-–—‐]", "[-–—‐]", pattern)


def _hit(values: Mapping[str, Any]) -> Hit:
    span = values["span"]
    return Hit(
        title=values["title"],
        url=values["url"],
        snippet=values["snippet"],
        score=values["score"],
        span=None if span is None else (span[0], span[1]),
        backend=values["backend"],
    )
