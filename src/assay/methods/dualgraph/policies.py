"""What asks the questions after the first round: the policies that are compared, over one loop.

All policies share the first outline, the first queries and the filter for what is on topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float

from assay.methods.dualgraph.chains import WEIGHTS, propose_chains
from assay.methods.dualgraph.communities import detect_communities
from assay.methods.dualgraph.knowledge_graph import KnowledgeGraph, VisitedChain
from assay.methods.dualgraph.records import Chain, ChainType, ResearchConfig

Similarity = Callable[[Sequence[str]], Float[np.ndarray, "n d"]]
"""From names to embeddings of length 1."""

GRAPH_POLICIES = ("dualgraph", "random_pair")
"""Policies that build the knowledge graph and ask from it."""


def chain_weights(without: Collection[str] = ()) -> dict[ChainType, int]:
    """Types of chains and their shares after ablations.

    Args:
        without: "enrich" drops that type, "explore" all other types, "communities" the types that need them.
    """
    needs_communities = ("cross_community", "sbm_probability", "sbm_entropy")
    return {
        kind: weight
        for kind, weight in WEIGHTS.items()
        if not (kind == "enrich" and "enrich" in without)
        and not (kind != "enrich" and "explore" in without)
        and not (kind in needs_communities and "communities" in without)
    }


def update_communities(graph: KnowledgeGraph, config: ResearchConfig) -> None:
    """Detect communities and store them in the graph's nodes; none with the ablation "communities"."""
    if "communities" in config.without:
        graph.set_communities({})
    else:
        graph.set_communities(detect_communities(graph, method=config.communities, seed=config.seed))


def plan_chains(
    graph: KnowledgeGraph,
    visited: Collection[VisitedChain] = (),
    *,
    config: ResearchConfig,
    similarity: Similarity | None = None,
    iteration: int = 0,
) -> list[Chain]:
    """The pairs that the policy offers this round, best first; empty for policies without a graph.

    Args:
        graph: the graph, with communities stored in its nodes (`update_communities`).
        visited: chains that were selected before.
        config: policy, ablations, `max_chains` and seed.
        similarity: embeds names; None ranks all names alike.
        iteration: the round, which random pairs depend on.
    """
    if config.policy not in GRAPH_POLICIES or not graph.nodes:
        return []
    if config.policy == "random_pair":
        return random_pairs(graph, visited, total=config.max_chains, seed=config.seed, iteration=iteration)
    weights = chain_weights(config.without)
    if not weights:
        return []
    names = [graph.nodes[node].name for node in sorted(graph.nodes)]
    return propose_chains(
        graph,
        visited,
        vectors=None if similarity is None else similarity(names),
        total=config.max_chains,
        weights=weights,
        degree_corrected=config.degree_corrected,
        with_communities="communities" not in config.without,
        seed=config.seed,
    )


def random_pairs(
    graph: KnowledgeGraph,
    visited: Collection[VisitedChain] = (),
    *,
    total: int,
    seed: int = 0,
    iteration: int = 0,
) -> list[Chain]:
    """Pairs drawn uniformly, without replacement, from the nodes on topic: the control for topology.

    Args:
        graph: the graph.
        visited: chains that were selected before; their pairs are not drawn again.
        total: pairs at most.
        seed: of the draw, together with `iteration`.
        iteration: the round.
    """
    nodes = np.array(sorted(graph.on_topic()), dtype=np.int64)
    first, second = (nodes[side] for side in np.triu_indices(len(nodes), 1))
    seen = {(u, v) for u, v, kind in visited if kind == "random_pair"}
    order = np.random.default_rng([seed, iteration]).permutation(len(first))
    chains: list[Chain] = []
    for place in order:
        pair = int(first[place]), int(second[place])
        if pair in seen:
            continue
        names = graph.nodes[pair[0]].name, graph.nodes[pair[1]].name
        reason = f"{names[0]} and {names[1]} were drawn at random among the nodes on topic."
        chains.append(Chain(len(chains) + 1, "random_pair", pair, names, 0.0, reason))
        if len(chains) == total:
            break
    return chains


def chain_key(chain: Chain) -> VisitedChain:
    """How a selected chain is remembered: its nodes in ascending order, and its type."""
    return min(chain.nodes), max(chain.nodes), chain.type
