"""A run by hand with every kind of thing that a page shows, hostile text among it, and a run of the loop."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from assay.methods.dualgraph.checkers import LexicalChecker
from assay.methods.dualgraph.embeddings import HashedWords
from assay.methods.dualgraph.extractive import ExtractiveModel
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.outline import OutlineGraph
from assay.methods.dualgraph.page import page_html
from assay.methods.dualgraph.records import (
    CitationRow,
    Document,
    Evidence,
    LedgerRow,
    QueryRow,
    ResearchConfig,
    RoundRow,
)
from assay.methods.dualgraph.research_run import ResearchRun, research
from assay.methods.dualgraph.state import RunState, WrittenSection

HOSTILE = (
    "<script>document.title='broken'</script> <img src=x onerror=\"document.title='broken'\"> \"q\" & ]]> "
    "[1] <https://evil.example/a> [x](https://evil.example/b) https://evil.example/c"
)
QUESTION = "How do Kestrel and Harrier hunt?"
TEXTS = {
    "kestrel.txt": "The Kestrel hovers over the Meadow before it strikes. The Kestrel eats the Vole in "
    "9 of 12 months. In spring the Kestrel nests in the Barn near the Village of Aldern.",
    "harrier.txt": "The Harrier glides low over the Marsh while it hunts. A Harrier hunts the Vole and "
    "the Frog at dusk. The Harrier nests on the ground, 40 metres from the Marsh.",
    "vole.txt": "The Vole lives in the Meadow and feeds on Clover. Numbers of the Vole follow a cycle of 4 "
    "years. In years of plenty the Kestrel and the Harrier hunt the Vole in one Meadow.",
    "owl.txt": "The Owl competes with the Harrier at dusk. The Owl hunts the Vole by hearing, and the "
    "Kestrel by sight alone.",
    "marsh.txt": "The Marsh shelters the Frog and the Heron. The Marsh floods in spring, when the Frog "
    "spawns.",
}


def piece(number: int, text: str, *, url: str, title: str = "Birds", **more) -> Evidence:
    digest = hashlib.sha256(url.encode()).hexdigest()
    return Evidence(number, title, url, text, (0, len(text)), digest, 1, **more)


def build_run() -> ResearchRun:
    """A finished run in memory: three sources, ten nodes, gaps, every status of a citation, hostile text."""
    urls = [
        "https://birds.example/kestrel",
        "file:///birds/harrier%20notes.txt",
        "javascript:document.title='broken'",
    ]
    state = RunState(
        QUESTION + " <b>&amp;",
        ResearchConfig(checker="lexical", keep_suspect=True),
        status="passed",
        nonce="n",
    )
    state.evidence = {
        1: piece(1, "The Kestrel hovers over the Meadow before it strikes.", url=urls[0]),
        2: piece(2, "The Kestrel eats the Vole in 9 of 12 months.", url=urls[0], page=3),
        3: piece(3, "The Harrier glides low over the Marsh.", url=urls[1], title="Harrier notes"),
        4: piece(4, f"The Vole feeds on Clover. {HOSTILE}", url=urls[2], title=HOSTILE, suspect=True),
    }
    for entry in state.evidence.values():
        page = "\n\n".join(e.content for e in state.evidence.values() if e.source_url == entry.source_url)
        state.documents[entry.sha256] = Document(entry.source_url, entry.source_title, page, entry.sha256)
    graph = KnowledgeGraph()
    names = ["Kestrel", "Harrier", "Vole", "Meadow", "Marsh", "Clover", HOSTILE, "Owl", "Frog", "Heron"]
    ids = [graph.add_node(name, is_core=i < 2) for i, name in enumerate(names)]
    graph.add_edge(ids[0], ids[3], "hovers over", {1})
    graph.add_edge(ids[0], ids[2], "eats", {2})
    graph.add_edge(ids[0], ids[2], "hunts", {2, 4})
    graph.add_edge(ids[1], ids[4], "glides over", {3})
    graph.add_edge(ids[2], ids[5], f"feeds on {HOSTILE}", {4})
    graph.add_edge(ids[2], ids[6], "mentioned with", {4})
    graph.add_edge(ids[1], ids[7], "competes with", set())
    graph.add_edge(ids[4], ids[8], "shelters", {3})
    graph.add_edge(ids[4], ids[9], "shelters", {3})
    graph.set_communities({node: node % 2 for node in ids})
    state.graph = graph
    state.outline = OutlineGraph.parse(
        f"1. Kestrel\n- how it hunts <citation>id_1, id_2</citation>\n- what nobody has said\n"
        f"1.1. Prey {HOSTILE}\n- the Vole <citation>id_4</citation>\n2. Harrier\n"
        "- over the Marsh <citation>id_3</citation>"
    )
    state.sections = [
        WrittenSection(
            "1",
            "Kestrel",
            "The Kestrel hovers over the Meadow before it strikes. [1] It eats the Vole in **9** of 12 "
            "months. [2]\n\n### Prey\n\n- The Vole feeds on Clover. [4] "
            "\\<script>document.title='broken'\\</script> \\[3\\]",
        ),
        WrittenSection("2", "Harrier", "The Harrier glides low over the Marsh [3]. Nothing else is known."),
    ]
    checked = [
        ("1", "The Kestrel hovers over the Meadow before it strikes.", 1, urls[0], "supported", 1.0, 1.0),
        ("1", "It eats the Vole in 9 of 12 months.", 2, urls[0], "supported", 0.9, 1.0),
        ("1", "The Vole feeds on Clover.", 4, urls[2], "supported", 1.0, 1.0),
        ("1", f"The Vole eats 12 Owls. {HOSTILE}", 2, urls[0], "unsupported", 0.2, 0.1),
        ("2", "The Harrier glides low over the Marsh.", 3, urls[1], "supported", 1.0, 1.0),
        ("2", "The Harrier is a bird.", 77, "", "dangling", 0.0, 0.0),
    ]
    state.citations = [CitationRow(*row, "lexical") for row in checked]
    state.queries = [QueryRow(1, 0, HOSTILE, "outline", 3, 4, ("a page could not be read",))]
    state.rounds = [
        RoundRow(0, 1, 4, 10, 9, 1, 2, 3, 5),
        RoundRow(1, 1, 4, 10, 9, 1, 2, 3, 5, {"depth": 8.5}),
    ]
    state.warnings.update({"unread_pages": 2, "failed_judge": 1})
    ledger = [
        LedgerRow("0/outline", "outline_init", "extractive", 10, 20, 0.0, 0.5),
        LedgerRow("1/write", "write", HOSTILE, 1000, 200, None, 1.5),
    ]
    return ResearchRun(state, ledger, None)


@pytest.fixture
def made_run() -> ResearchRun:
    """See `build_run`; a test may change it."""
    return build_run()


def without_weights(patch: pytest.MonkeyPatch) -> None:
    """Names are compared by their letters: loading the weights of MiniLM takes seconds."""
    for module in ("research_run", "checkers", "extractive"):
        patch.setattr(f"assay.methods.dualgraph.{module}.default_encoder", HashedWords)


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch):
    without_weights(monkeypatch)


@pytest.fixture(scope="session")
def page() -> str:
    """The page of the run by hand."""
    with pytest.MonkeyPatch.context() as patch:
        without_weights(patch)
        return page_html(build_run())


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """A folder of five texts about birds."""
    folder = tmp_path_factory.mktemp("library")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def finished(library, tmp_path_factory) -> Path:
    """The folder of a run of the extractive model over the library. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("runs") / "birds"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        without_weights(patch)
        research(
            QUESTION,
            llm=ExtractiveModel(HashedWords()),
            search=[f"local:{library}"],
            config=ResearchConfig(kg_queries=3, og_queries=4, max_iter=2, checker="lexical"),
            run_dir=folder,
            encoder=HashedWords(),
            checker=LexicalChecker(),
        )
    return folder
