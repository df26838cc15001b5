"""The records that the parts of dualgraph exchange, the interfaces of models and search, and their errors.

Everything here is plain data: no part of the method is imported, and nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from assay.errors import InputError

Policy = Literal["dualgraph", "outline", "linear", "random_pair"]
Rubric = Literal["low", "high"]
ChainType = Literal[
    "enrich",
    "entity_concept",
    "cross_community",
    "sbm_probability",
    "sbm_entropy",
    "random_pair",
]
RunStatus = Literal[
    "running",
    "passed",
    "saturated",
    "max_iter",
    "budget",
    "search_failed",
]

POLICIES: tuple[str, ...] = get_args(Policy)
ABLATIONS = ("enrich", "explore", "communities")


class ServiceError(RuntimeError):
    """A search provider or a model server failed; the message says which and what it answered."""


class AuthenticationFailed(ServiceError, InputError):
    """The service refused the key (401 or 403): retrying is useless, the user has to act."""


class RateLimited(ServiceError):
    """The service asks to slow down (429), after all retries.

    Attributes:
        retry_after: seconds that the service asked to wait, where it said so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceUnavailable(ServiceError):
    """The service is down, too slow, or its circuit breaker is open (5xx, time-outs, broken connections)."""


class ContextOverflow(ServiceError):
    """The messages do not fit the model's context.

    Attributes:
        limit: tokens that the model takes, where it is known.
        needed: tokens that were sent, where they are known.
    """

    def __init__(self, message: str, limit: int | None = None, needed: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.needed = needed


class InvalidOutput(ServiceError):
    """A model's answer does not match what was asked for, after all repairs."""


class SearchFailed(ServiceError):
    """Every query of a round failed: the run stops instead of writing a report from nothing."""


class ReadFailed(ServiceError):
    """One page or file could not be read; the search goes on without it."""


class AddressBlocked(ReadFailed):
    """An address that must not be fetched: a private network, another scheme, a denied host."""


class RunLocked(InputError):
    """Another process works on this run folder."""


class CorruptRun(InputError):
    """The run folder's database cannot be read or is of another version; the file is left as it is."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call of a model took.

    Attributes:
        prompt_tokens: tokens sent.
        completion_tokens: tokens received.
        estimated: the service reported nothing and the counts are ours.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A model's answer and what it took."""

    text: str
    usage: Usage = field(default_factory=Usage)


@runtime_checkable
class ChatModel(Protocol):
    """A chat model.

    Attributes:
        name: names the model in the ledger and in the price table.
        context_tokens: tokens that prompt and answer may take together.
        concurrency: calls that it takes at once; 1 for a model in this process.
    """

    name: str
    context_tokens: int
    concurrency: int

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any] | None = None,
        temperature: float = 0.7,
        max_tokens: int = 4096,
        role: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> ChatResult:
        """Answer `messages` ({"role", "content"}).

        `schema` is a JSON schema that the answer must match (a model may ignore it: answers are validated).
        `role` names the task (see `prompts.ROLES`) and `data` is its input as strict JSON values: a model
        without language (the extractive one) answers from them, a replay finds its answer by them; others
        ignore both.

        Raises:
            ContextOverflow, AuthenticationFailed, RateLimited, ServiceUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    Attributes:
        title: title of the page or file.
        url: where it is; `file://` for a local file.
        snippet: the passage that matched, or the provider's extract; never evidence by itself.
        score: higher is better; comparable only within one answer.
        span: (start, end) characters of the passage in `Document.text`, where the back end knows it.
        backend: name of the back end, which also has to read it.
    """

    title: str
    url: str
    snippet: str
    score: float = 0.0
    span: tuple[int, int] | None = None
    backend: str = ""

    @property
    def key(self) -> str:
        """What counts as the same result: the page, or the passage of a page where spans are known."""
        return self.url if self.span is None else f"{self.url}#char={self.span[0]},{self.span[1]}"


@dataclass(frozen=True, slots=True)
class Document:
    """A snapshot of a page or a file, as it was read.

    Attributes:
        url: where it was read.
        title: its title.
        text: its text; spans of evidence are character offsets in it.
        sha256: of `text` in UTF-8, hexadecimal.
        pages: for paged files, the character offset at which every page starts.
    """

    url: str
    title: str
    text: str
    sha256: str
    pages: tuple[int, ...] = ()

    def page_at(self, offset: int) -> int | None:
        """Number (from 1) of the page that holds character `offset`; None for a document without pages."""
        if not self.pages:
            return None
        return max(1, sum(start <= offset for start in self.pages))


@runtime_checkable
class SearchBackend(Protocol):
    """Something that can be searched and read.

    Attributes:
        name: as the user wrote it, for example `local:./papers`.
    """

    name: str

    def search(self, query: str, k: int, *, exclude: Collection[str] = ()) -> list[Hit]:
        """The best `k` results, best first, without those whose `key` is in `exclude`.

        Raises:
            AuthenticationFailed, RateLimited, ServiceUnavailable.
        """
        ...

    def read(self, hit: Hit) -> Document:
        """The page or file of a result.

        Raises:
            ReadFailed: it is gone, empty, too large, of an unreadable kind, or its address is blocked.
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a query brought: results of all back ends in turn, and what failed, in words."""

    query: str
    hits: tuple[Hit, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A verbatim passage of a stored snapshot.

    Attributes:
        id: counted from 1 within a run.
        source_title: title of the page or file.
        source_url: its address.
        content: the passage, exactly `document.text[span[0]:span[1]]`.
        span: (start, end) characters in the snapshot.
        sha256: of the snapshot.
        query_id: the query that found it.
        page: page of a paged file, from 1.
        suspect: a sentence of it looks like an instruction to a model.
    """

    id: int
    source_title: str
    source_url: str
    content: str
    span: tuple[int, int]
    sha256: str
    query_id: int
    page: int | None = None
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """An entity or a concept. Core entities, which the question asks about, are never merged or removed."""

    id: int
    name: str
    is_core: bool = False
    aliases: tuple[str, ...] = ()
    community_id: int | None = None
    cluster_id: int | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed relation in words, with the evidence that states it.

    Attributes:
        evidence: ids of evidence that mentions both ends; what a model attached without that is left out.
    """

    id: int
    source: int
    target: int
    relation: str
    evidence: frozenset[int] = frozenset()

    @property
    def status(self) -> Literal["supported", "unsupported"]:
        """An edge without evidence is "unsupported": it is never cited, and is the first to be looked for."""
        return "supported" if self.evidence else "unsupported"


@dataclass(frozen=True, slots=True)
class Chain:
    """A pair of nodes about which more should be found.

    Attributes:
        id: its rank in the list shown to the model, from 1.
        type: which rule proposed it.
        nodes: the ids of the two nodes.
        names: their names.
        score: what the rule ranks by.
        reason: one sentence for people and models.
        content: what is known about the pair: its relations in words, "" if none.
        visited: it was selected before (a chain is proposed again only when nothing else is left).
        on_topic: both nodes are core or one step from a core entity.
    """

    id: int
    type: ChainType
    nodes: tuple[int, int]
    names: tuple[str, str]
    score: float
    reason: str
    content: str = ""
    visited: bool = False
    on_topic: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """A line of the outline below a heading, and the evidence that it cites."""

    text: str
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the outline.

    Attributes:
        id: counted from 1 in reading order.
        number: "2", "2.1" or "2.1.3".
        title: its words.
        parent: id of the heading above, None at the top level.
        points: the lines below the heading and before the next.
        evidence: what the heading itself cites.
    """

    id: int
    number: str
    title: str
    parent: int | None = None
    points: tuple[Point, ...] = ()
    evidence: tuple[int, ...] = ()

    @property
    def level(self) -> int:
        """1 for a top-level heading, up to 3."""
        return self.number.count(".") + 1


@dataclass(frozen=True, slots=True)
class QueryRow:
    """An executed query: what asked for it ("question", "outline", "graph"), and what it brought."""

    id: int
    iteration: int
    text: str
    origin: str
    hits: int = 0
    evidence: int = 0
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundRow:
    """The state after a round, for progress and figures (round 0 is the preparation)."""

    iteration: int
    queries: int
    evidence: int
    nodes: int
    edges: int
    strong_edges: int
    communities: int
    cited_lines: int
    lines: int
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One call of a model.

    Attributes:
        step: the step of the run, for example "2/select_chains".
        usd: its price in US dollars; None where the price table does not list the model.
    """

    step: str
    role: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class CitationRow:
    """The check of one marker in one sentence of a report.

    Attributes:
        section: number of the section, "" where the report has none.
        sentence: the sentence without markers.
        evidence_id: what the marker names: an evidence's id, or a reference's number in a foreign report.
        url: its source, "" if dangling.
        status: "supported", "unsupported" (the check failed), or "dangling" (no such evidence, or none that
            was offered to this section).
        quote_overlap: longest run of words that sentence and evidence share, over the words of the sentence.
        score: the checker's, from 0 to 1.
        checker: its name.
    """

    section: str
    sentence: str
    evidence_id: int
    url: str
    status: Literal["supported", "unsupported", "dangling"]
    quote_overlap: float = 0.0
    score: float = 0.0
    checker: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: whichever limit is reached first. None is no limit.

    Raises:
        InputError: a limit that is not a positive number.
    """

    tokens: int | None = None
    usd: float | None = None
    queries: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "usd", "queries", "seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"the budget of {name} must be a positive number, got {value}")


@dataclass(frozen=True)
class ResearchConfig:
    """How a question is researched. Defaults are the paper's code's, where it has them.

    Attributes:
        kg_queries: at most so many queries a round from the knowledge graph.
        og_queries: at most so many queries a round from the outline.
        max_iter: rounds at most.
        results_per_query: pages or passages read for a query.
        max_chains: chains shown to the model a round.
        early_stop: stop when the outline passes the rubric or nothing new is found.
        rubric: what the outline has to reach.
        budget: when to stop in any case.
        language: BCP 47 tag of the report.
        checker: how citations are checked, a name that `checkers.load_checker` knows.
        seed: of everything random.
        policy: what asks the questions after the first round.
        without: parts of the dual graph to leave out: "enrich", "explore", "communities".
        degree_corrected: rank block-model chains by B_ab (1 + d_u)(1 + d_v) instead of B_ab.
        communities: "louvain" (networkx), or "leiden" (leidenalg, which is not installed by default).
        keep_suspect: also use evidence that looks like an instruction to a model.
        concurrency: searches and pages under way at once.
        temperature: of all calls but merging.
        merge_temperature: of merging.

    Raises:
        InputError: a value outside its range.
    """

    kg_queries: int = 10
    og_queries: int = 10
    max_iter: int = 5
    results_per_query: int = 5
    max_chains: int = 60
    early_stop: bool = True
    rubric: Rubric = "low"
    budget: Budget = field(default_factory=Budget)
    language: str = "en"
    checker: str = "combined"
    seed: int = 0
    policy: Policy = "dualgraph"
    without: tuple[str, ...] = ()
    degree_corrected: bool = False
    communities: Literal["louvain", "leiden"] = "louvain"
    keep_suspect: bool = False
    concurrency: int = 5
    temperature: float = 0.7
    merge_temperature: float = 0.3

    def __post_init__(self) -> None:
        least = {
            "kg_queries": 0,
            "og_queries": 0,
            "max_iter": 1,
            "results_per_query": 1,
            "max_chains": 5,
            "concurrency": 1,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f"{name} must be at least {low}, got {getattr(self, name)}")
        choices = {
            "policy": POLICIES,
            "rubric": get_args(Rubric),
            "communities": ("louvain", "leiden"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for part in self.without:
            if part not in ABLATIONS:
                raise InputError(f"without must name parts among {', '.join(ABLATIONS)}, got {part!r}")
        for name in ("temperature", "merge_temperature"):
            if not 0 <= getattr(self, name) <= 2:
                raise InputError(f"{name} must be from 0 to 2, got {getattr(self, name)}")
