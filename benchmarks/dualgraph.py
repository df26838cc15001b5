"""dualgraph's chains beside plain loops, indexing, concurrent queries, what a step costs, and embedding.

OMP_NUM_THREADS=1 python -m benchmarks.dualgraph
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from assay.data.embedded import EMBEDDED, package_file
from assay.methods.dualgraph.backends import open_backend
from assay.methods.dualgraph.chain_loops import propose_pairs_loops
from assay.methods.dualgraph.chains import propose_chains
from assay.methods.dualgraph.cmake_documentation import documentation
from assay.methods.dualgraph.communities import detect_communities
from assay.methods.dualgraph.concurrency import search_many
from assay.methods.dualgraph.embeddings import DISTRIBUTION, MiniLM
from assay.methods.dualgraph.index import update_index
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph
from assay.methods.dualgraph.records import Document, Evidence, QueryRow, ResearchConfig
from assay.methods.dualgraph.state import RunState
from assay.methods.dualgraph.store import RunStore

LATENCY = 0.2


def seconds(action: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.process_time):
    """The shortest of a few runs by the clock; one run before them warms up."""
    action()
    spent = []
    for _ in range(repeats):
        start = clock()
        action()
        spent.append(clock() - start)
    return min(spent)


def show(what: str, result: str, note: str = "") -> None:
    print(f"{what:<58} {result:<28} {note}".rstrip())


peer_library: Any = transformers


def random_graph(nodes: int, edges: int, communities: int = 40) -> KnowledgeGraph:
    """Nodes in groups, most edges within one, no, one or two pieces of evidence an edge."""
    rng = np.random.default_rng(0)
    graph = KnowledgeGraph()
    for i in range(nodes):
        graph.add_node(f"node {i}", is_core=i < 10)
    label = rng.integers(communities, size=nodes)
    while len(graph.edges) < edges:
        u, v = (int(i) for i in rng.choice(nodes, size=2, replace=False))
        if label[u] == label[v] or rng.random() < 0.05:
            graph.add_edge(u + 1, v + 1, "relates to", rng.integers(1, 9_999, int(rng.integers(3))).tolist())
    graph.set_communities(detect_communities(graph, seed=0))
    return graph


def chains() -> None:
    graph = random_graph(2_000, 6_000)
    # Multiples of 1/8, whose products are exact: sums in another order must not break ties differently.
    vectors = (np.random.default_rng(0).integers(-4, 5, size=(2_000, 32)) / 8).astype(np.float32)
    ours = [(one.type, tuple(sorted(one.nodes))) for one in propose_chains(graph, vectors=vectors)]
    plain = [(kind, pair) for kind, pair, _ in propose_pairs_loops(graph, vectors=vectors)]
    fast = seconds(lambda: propose_chains(graph, vectors=vectors))
    slow = seconds(lambda: propose_pairs_loops(graph, vectors=vectors), repeats=1)
    show(
        "60 chains of 2000 nodes and 6000 edges",
        f"{1e3 * fast:.0f} ms",
        f"plain loops {slow:.2f} s, {slow / fast:.0f}x; same chains: {ours == plain}",
    )


def indexing() -> None:
    passages = documentation().passages
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "documents"
        folder.mkdir()
        for start in range(0, len(passages), 20):
            text = "\n\n".join(passage.text for passage in passages[start : start + 20])
            (folder / f"{start}.txt").write_text(text, encoding="utf-8")
        places = iter(range(100))

        def build() -> Any:
            return update_index(folder, Path(name) / f"index{next(places)}", embeddings=False)

        report = build()
        spent = seconds(build, repeats=3)
        again = seconds(lambda: update_index(folder, Path(name) / "index0", embeddings=False), repeats=3)
    show(
        f"indexing {report.passages} passages in {report.documents} text files",
        f"{report.passages / spent:,.0f} passages/s",
        f"{spent:.2f} s; again, nothing changed: {1e3 * again:.0f} ms",
    )


@contextmanager
def slow_engine() -> Iterator[str]:
    """A SearXNG that takes 200 ms for every answer, on this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(LATENCY)
            row = {"title": "t", "url": f"https://example.org{self.path}", "content": "c"}
            body = json.dumps({"results": [row]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def concurrent_queries() -> None:
    queries = [f"query {i}" for i in range(20)]
    with slow_engine() as address:
        engine = open_backend(f"searxng:{address}")

        def ask(concurrency: int) -> Any:
            return search_many([engine], queries, k=5, concurrency=concurrency)

        same = [out.hits for out in ask(1)] == [out.hits for out in ask(5)]
        one, five = (seconds(lambda c=c: ask(c), repeats=1, clock=time.perf_counter) for c in (1, 5))
    show(
        f"{len(queries)} queries to an engine that takes {1e3 * LATENCY:.0f} ms, 5 at a time",
        f"{five:.2f} s",
        f"one at a time {one:.2f} s, {one / five:.1f}x; same results: {same}",
    )


def step_overhead() -> None:
    """What committing a step costs in a run with 300 pieces of evidence that grows by five a step."""
    spent = []
    with tempfile.TemporaryDirectory() as name:
        store = RunStore(Path(name) / "run.sqlite")
        state = RunState("What is it?", ResearchConfig())
        store.save(state)
        for step in range(60):
            for i in range(5 * step + 1, 5 * step + 6):
                text = f"Alpha {i} relates to beta {i}. " * 20
                state.documents[f"{i:064x}"] = Document(f"https://x.org/{i}", "t", text, f"{i:064x}")
                state.evidence[i] = Evidence(i, "t", f"https://x.org/{i}", text[:30], (0, 30), f"{i:064x}", 1)
                ends = (state.graph.add_node(f"alpha {i}"), state.graph.add_node(f"beta {i % 7}"))
                state.graph.add_edge(*ends, "relates to", (i,))
            state.queries.append(QueryRow(step + 1, step, f"query {step}", "graph", 5, 5))
            start = time.perf_counter()
            store.commit(state, step, "search", payload={"found": 5}, seconds=0.0)
            spent.append(time.perf_counter() - start)
        store.close()
    show(
        "committing a step to the run's database",
        f"{1e3 * float(np.median(spent)):.1f} ms (median)",
        f"longest of {len(spent)}: {1e3 * max(spent):.1f} ms",
    )


def embedding() -> None:
    """Passages of CMake's documentation; the peer takes them as they come, in batches of 32."""
    passages = [passage.text for passage in documentation().passages[::140]]
    files = [package_file(DISTRIBUTION, *path.split("/")) for path in EMBEDDED[DISTRIBUTION].checksums]
    source = str(Path(files[0]).parent)
    tokenizer = peer_library.BertTokenizerFast.from_pretrained(source, local_files_only=True)
    model = transformers.BertModel.from_pretrained(source, local_files_only=True).eval()

    def peer() -> np.ndarray:
        rows = []
        with torch.inference_mode():
            for start in range(0, len(passages), 32):
                tokens = tokenizer(
                    passages[start : start + 32],
                    padding=True,
                    truncation=True,
                    max_length=256,
                    return_tensors="pt",
                )
                mask = tokens["attention_mask"][..., None].float()
                mean = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
                rows.append(torch.nn.functional.normalize(mean, dim=1).numpy())
        return np.concatenate(rows)

    encoder = MiniLM(memory=0)
    difference = float(np.abs(encoder.encode(passages) - peer()).max())
    ours, theirs = (seconds(action, repeats=2) for action in (lambda: encoder.encode(passages), peer))
    show(
        f"embedding {len(passages)} passages with MiniLM",
        f"{len(passages) / ours:.0f} passages/s",
        f"plain transformers {len(passages) / theirs:.0f}/s, {theirs / ours:.1f}x; they differ by at most "
        f"{difference:.0e}",
    )


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    chains()
    indexing()
    concurrent_queries()
    step_overhead()
    embedding()


if __name__ == "__main__":
    main()
