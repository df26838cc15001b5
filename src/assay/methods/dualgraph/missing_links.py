"""Links that are missing: similar names, and the stochastic block model (paper, types 2, 4 and 5).

Everything is computed in chunks of rows, so that memory stays bounded by a few million pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from assay.methods.dualgraph.topology import Candidate, Topology, seeded_order

SMOOTHING = 0.1
SIMILARITY_DIGITS = 5
_CHUNK = 2_000_000

Scores = Callable[[Int[np.ndarray, " k"], Int[np.ndarray, " k"]], Float[np.ndarray, " k"]]
"""From the numbers of first and second nodes to their scores."""

Scored = Callable[[Int[np.ndarray, " r"]], tuple[Bool[np.ndarray, "r c"], Scores]]
"""From a chunk of rows to the pairs that count, and to what scores them."""


def entity_concept(
    shape: Topology,
    vectors: Float[np.ndarray, "n d"],
    forbidden: Int[np.ndarray, "m 2"],
    allowed: Bool[np.ndarray, " n"],
    *,
    limit: int,
    seed: int,
) -> list[Candidate]:
    """Unconnected pairs of a core entity and a concept, most similar names first."""
    rows = np.flatnonzero(shape.core & allowed)
    columns = np.flatnonzero(~shape.core & allowed)

    def unscored(chunk: Int[np.ndarray, " r"]) -> tuple[Bool[np.ndarray, "r c"], Scores]:
        return np.ones((len(chunk), len(columns)), dtype=bool), lambda r, c: np.zeros(len(r))

    best = _best_pairs(shape, vectors, forbidden, rows, columns, unscored, limit=limit, seed=seed)
    return [Candidate(min(u, v), max(u, v), similarity) for u, v, _, similarity in best]


def block_probabilities(shape: Topology) -> Float[np.ndarray, "c c"]:
    """B_ab = (E_ab + 0.1) / (M_ab + 0.2): how likely a link between two communities is.

    E counts the links and M the pairs of nodes, n_a n_b between two communities and n (n - 1) / 2 inside one.
    """
    sizes = shape.sizes.astype(float)
    possible = np.outer(sizes, sizes)
    np.fill_diagonal(possible, sizes * (sizes - 1) / 2)
    return (shape.links(shape.pairs) + SMOOTHING) / (possible + 2 * SMOOTHING)


def block_entropies(probabilities: Float[np.ndarray, "c c"]) -> Float[np.ndarray, "c c"]:
    """H(B) = -B log2 B - (1 - B) log2 (1 - B), in bits."""
    p = probabilities
    return -p * np.log2(p) - (1 - p) * np.log2(1 - p)


def block_model(
    shape: Topology,
    vectors: Float[np.ndarray, "n d"],
    forbidden: Int[np.ndarray, "m 2"],
    allowed: Bool[np.ndarray, " n"],
    *,
    limit: int,
    entropy: bool,
    degree_corrected: bool,
    seed: int,
) -> list[Candidate]:
    """Unconnected pairs across communities by the probability, or the entropy, of their block.

    All pairs of a block have one score: more similar names go first, then a seeded order. Only blocks that
    can reach the best `limit` pairs are looked into: a block's count of missing pairs and its smallest score
    give a bound that the last chosen pair must reach.
    """
    if shape.communities < 2 or limit <= 0:
        return []
    block = block_probabilities(shape)
    if entropy:
        block = block_entropies(block)
    factor = 1.0 + shape.degree if degree_corrected else np.ones(len(shape.ids))
    inside = np.flatnonzero(allowed & (shape.community >= 0))
    count = np.bincount(shape.community[inside], minlength=shape.communities)
    least, most = np.full(shape.communities, np.inf), np.zeros(shape.communities)
    np.minimum.at(least, shape.community[inside], factor[inside])
    np.maximum.at(most, shape.community[inside], factor[inside])
    least[count == 0] = 0
    used = forbidden[allowed[forbidden].all(axis=1)] if len(forbidden) else forbidden
    free = np.outer(count, count) - shape.links(used)
    upper = np.triu(np.asarray(free > 0), 1)
    a, b = np.nonzero(upper)
    lowest = block[a, b] * least[a] * least[b]
    order = np.argsort(-lowest)
    enough = np.flatnonzero(np.cumsum(free[a, b][order]) >= limit)
    # The margin covers the rounding of products that are taken in another order.
    bound = float(lowest[order[enough[0]]]) * (1 - 1e-9) if len(enough) else 0.0
    open_blocks = upper & np.asarray(block * np.outer(most, most) >= bound)
    row_open, column_open = (np.asarray(np.any(open_blocks, axis=axis)) for axis in (1, 0))
    rows = inside[row_open[shape.community[inside]]]
    columns = inside[column_open[shape.community[inside]]]

    def scored(chunk: Int[np.ndarray, " r"]) -> tuple[Bool[np.ndarray, "r c"], Scores]:
        wanted = open_blocks[np.ix_(shape.community[chunk], shape.community[columns])]
        return wanted, lambda r, c: block[shape.community[r], shape.community[c]] * (factor[r] * factor[c])

    best = _best_pairs(shape, vectors, forbidden, rows, columns, scored, limit=limit, seed=seed, bound=bound)
    return [Candidate(min(u, v), max(u, v), score) for u, v, score, _ in best]


def _best_pairs(
    shape: Topology,
    vectors: Float[np.ndarray, "n d"],
    forbidden: Int[np.ndarray, "m 2"],
    rows: Int[np.ndarray, " r"],
    columns: Int[np.ndarray, " c"],
    scored: Scored,
    *,
    limit: int,
    seed: int,
    bound: float = 0.0,
) -> list[tuple[int, int, float, float]]:
    """The best (u, v, score, similarity) of rows x columns: by score, by similarity, then in seeded order."""
    if not len(rows) or not len(columns) or limit <= 0:
        return []
    both = np.concatenate([forbidden, forbidden[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    column_of = np.full(len(shape.ids), -1)
    column_of[columns] = np.arange(len(columns))
    step = max(1, _CHUNK // len(columns))
    kept: list[np.ndarray] = [np.empty(0)] * 5
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        wanted, score_of = scored(chunk)
        _block(wanted, chunk, column_of, both)
        r, c = np.nonzero(wanted)
        score = score_of(chunk[r], columns[c])
        keep = np.flatnonzero(score >= bound)
        r, c, score = r[keep], c[keep], score[keep]
        similarity = _similarities(vectors, chunk, columns, r, c)
        u, v = chunk[r], columns[c]
        tie = seeded_order(seed, shape.ids[u], shape.ids[v])
        fresh = (u, v, score, similarity, tie)
        kept = [np.concatenate([old, new]) if len(old) else new for old, new in zip(kept, fresh, strict=True)]
        order = _top(kept[2:], limit)
        kept = [values[order] for values in kept]
    return [(int(u), int(v), float(s), float(m)) for u, v, s, m, _ in zip(*kept, strict=True)]


def _block(
    wanted: Bool[np.ndarray, "r c"],
    chunk: Int[np.ndarray, " r"],
    column_of: Int[np.ndarray, " n"],
    both: Int[np.ndarray, "m 2"],
) -> None:
    """Strike forbidden pairs, which `both` lists in both directions by ascending first node."""
    starts = np.searchsorted(both[:, 0], chunk, side="left")
    ends = np.searchsorted(both[:, 0], chunk, side="right")
    counts = ends - starts
    at = np.repeat(np.arange(len(chunk)), counts)
    places = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(starts, counts)
    other = column_of[both[places, 1]]
    wanted[at[other >= 0], other[other >= 0]] = False


def _similarities(
    vectors: Float[np.ndarray, "n d"],
    chunk: Int[np.ndarray, " r"],
    columns: Int[np.ndarray, " c"],
    r: Int[np.ndarray, " k"],
    c: Int[np.ndarray, " k"],
) -> Float[np.ndarray, " k"]:
    """Cosines of the named pairs, rounded so that the order of additions can't break ties."""
    if len(r) * 4 > len(chunk) * len(columns):
        values = (vectors[chunk] @ vectors[columns].T)[r, c]
    else:
        values = np.empty(len(r))
        for start in range(0, len(r), 65_536):
            part = slice(start, start + 65_536)
            values[part] = np.einsum("kd,kd->k", vectors[chunk[r[part]]], vectors[columns[c[part]]])
    # Adding 0 turns -0 into 0.
    return np.round(values.astype(np.float64), SIMILARITY_DIGITS) + 0.0


def _top(keys: list[np.ndarray], limit: int) -> Int[np.ndarray, " k"]:
    """Places of the largest items in falling order, compared key by key; a full sort only of what is kept."""
    places = np.arange(len(keys[0]))
    sure: list[np.ndarray] = []
    need = limit
    for key in keys:
        if len(places) <= need:
            break
        values = key[places]
        last = np.partition(values, len(values) - need)[len(values) - need]
        sure.append(places[values > last])
        need -= len(sure[-1])
        places = places[values == last]
    chosen = np.concatenate([*sure, places[:need]])
    return chosen[np.lexsort([key[chosen] for key in reversed(keys)])[::-1]]
