"""Where things stand in the drawings of the two graphs, computed here so that a page needs no library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

# The width of both drawings, in units of the page's pixels.
WIDTH = 1160.0
PILL_HEIGHT = 26.0
CORE_HEIGHT = 32.0
LONGEST_LABEL = 30

_GAP = 11.0
_ROUNDS = 600


@dataclass(frozen=True)
class Pill:
    """A node of the knowledge graph: a rounded box around its name, by its middle and its size."""

    id: int
    label: str
    is_core: bool
    community: int | None
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Leaf:
    """A line of the outline's drawing.

    Attributes:
        key: of the section ("2.1") or of its line ("2.1/0"); "" for the question.
        label: the lines of text to draw.
        evidence: pieces that it cites, with those of what is below it.
        kind: "question", "section" or "point".
        x, y: the dot; the text begins right of it.
        parent: the key that it hangs on; None for the question.
    """

    key: str
    label: tuple[str, ...]
    evidence: tuple[int, ...]
    kind: str
    x: float
    y: float
    parent: str | None


def make_pill(node_id: int, name: str, is_core: bool, community: int | None) -> Pill:
    """A pill of the right size, not yet placed; a long name is cut."""
    label = shortened(name, LONGEST_LABEL)
    width = max(34.0, text_width(label, 14.0 if is_core else 12.5) * (1.08 if is_core else 1.0) + 22.0)
    return Pill(node_id, label, is_core, community, width, CORE_HEIGHT if is_core else PILL_HEIGHT)


def text_width(text: str, size: float) -> float:
    """How wide a text is at most in the usual sans-serif fonts, in the units of `size`."""
    return size * sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> float:
    if ord(letter) > 0x2E7F:
        return 1.05
    if letter in "ijl.,:;'|!()[] ":
        return 0.36
    if letter in "mwMW@%":
        return 0.95
    return 0.69 if letter.isupper() or letter in "_<>+=#" else 0.6


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, with an ellipsis where something was cut."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def place_pills(pills: Sequence[Pill], links: Sequence[tuple[int, int]]) -> tuple[list[Pill], float]:
    """Place nodes so that linked ones are close and no two overlap; the same input gives the same drawing.

    Distances follow the graph (Kamada and Kawai, 1989), links within a community pull closer than others, and
    parts that nothing links hang on an invisible centre. Boxes that overlap are then pushed apart.

    Args:
        pills: the nodes.
        links: pairs of their ids; each pair once.

    Returns:
        The placed nodes, and the height of the drawing (its width is `WIDTH`).
    """
    if not pills:
        return [], 0.0
    size = np.array([[pill.width, pill.height] for pill in pills]) + _GAP
    area = float((size[:, 0] * size[:, 1]).sum())
    height = max(300.0, 4.6 * area / WIDTH)
    start = _spread(_distances(pills, links))
    # Straightens what is turned by chance: the longest direction of the drawing is the width of the page.
    start = _fit(_along_axes(start), height, size)
    for _ in range(12):
        placed, overlap = _apart(start, size, height)
        if not overlap:
            break
        height *= 1.15
        start = _fit(placed, height, size)
    top = float((placed[:, 1] - size[:, 1] / 2).min())
    bottom = float((placed[:, 1] + size[:, 1] / 2).max())
    moved = [
        replace(pill, x=round(float(x), 1), y=round(float(y) - top + _GAP, 1))
        for pill, (x, y) in zip(pills, placed, strict=True)
    ]
    return moved, round(bottom - top + 2 * _GAP, 1)


def _distances(pills: Sequence[Pill], links: Sequence[tuple[int, int]]) -> Float[np.ndarray, "n n"]:
    """Lengths of the shortest paths; parts of the graph are linked over their best connected nodes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, shortest_path

    place = {pill.id: i for i, pill in enumerate(pills)}
    count = len(pills)
    weights = np.zeros((count, count))
    degree = np.zeros(count)
    for u, v in links:
        i, j = place[u], place[v]
        same = pills[i].community is not None and pills[i].community == pills[j].community
        weights[i, j] = weights[j, i] = 1.0 if same else 1.5
        degree[[i, j]] += 1
    _, part = connected_components(csr_array(weights), directed=False)
    heads = [max(np.flatnonzero(part == p), key=lambda i: (degree[i], -i)) for p in range(part.max() + 1)]
    biggest = max(heads, key=lambda i: ((part == part[i]).sum(), -i))
    for head in heads:
        if head != biggest:
            weights[head, biggest] = weights[biggest, head] = 2.5 if degree[head] else 2.0
    return shortest_path(csr_array(weights), directed=False)


def _spread(distances: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n 2"]:
    """Places in the plane whose distances are close to the wanted ones, by stress majorisation.

    Majorisation (Gansner, Koren and North, 2004) lowers the stress of Kamada and Kawai in every round.
    """
    count = len(distances)
    if count == 1:
        return np.zeros((1, 2))
    wanted = np.maximum(distances, 1e-9)
    weight = wanted**-2.0
    np.fill_diagonal(weight, 0.0)
    # Classical scaling is a start without chance.
    squared = -0.5 * distances**2
    centred = squared - squared.mean(0) - squared.mean(1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(centred)
    places = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    # Nodes in one place would divide by zero and stay together.
    turn = np.arange(count) * 2.399963
    places = places + 0.05 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    laplacian = np.diag(weight.sum(1)) - weight
    inverse = np.linalg.pinv(laplacian)
    for _ in range(120):
        apart = np.linalg.norm(places[:, None] - places[None], axis=2)
        ratio = weight * wanted / np.maximum(apart, 1e-6)
        target = np.diag(ratio.sum(1)) - ratio
        moved = inverse @ (target @ places)
        if np.abs(moved - places).max() < 1e-4:
            return moved
        places = moved
    return places


def _along_axes(places: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    centred = places - places.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    # The sign of an axis is arbitrary; fixed, so that the drawing is the same everywhere.
    signs = np.where(axes[np.arange(2), np.abs(axes).argmax(1)] < 0, -1.0, 1.0)
    return centred @ (axes * signs[:, None]).T


def _fit(
    places: Float[np.ndarray, "n 2"], height: float, size: Float[np.ndarray, "n 2"]
) -> Float[np.ndarray, "n 2"]:
    """The same arrangement over the whole of the drawing."""
    low, high = size / 2, np.array([WIDTH, height]) - size / 2
    span = np.maximum(places.max(0) - places.min(0), 1e-9)
    scaled = (places - places.min(0)) / span
    # Half by place and half by rank: what is crowded gets room, what is far off comes nearer.
    rank = scaled.argsort(0, kind="stable").argsort(0) / max(1, len(places) - 1)
    return low + (scaled + rank) / 2 * (high - low)


def _apart(
    places: Float[np.ndarray, "n 2"], size: Float[np.ndarray, "n 2"], height: float
) -> tuple[Float[np.ndarray, "n 2"], bool]:
    """Push boxes apart along the shorter way until none overlap; the second value says that some still do."""
    places = places.copy()
    low, high = size / 2, np.array([WIDTH, height]) - size / 2
    least = (size[:, None] + size[None]) / 2
    upper = np.triu(np.ones((len(places), len(places)), dtype=bool), 1)
    for _ in range(_ROUNDS):
        difference = places[:, None] - places[None]
        overlap = least - np.abs(difference)
        hit = (overlap > 1e-6).all(2) & upper
        if not hit.any():
            return places, False
        # Sideways costs more, because boxes are wide and the page is not.
        sideways = overlap[..., 0] < overlap[..., 1]
        for axis, chosen in ((0, hit & sideways), (1, hit & ~sideways)):
            sign = np.where(difference[..., axis] < 0, -1.0, 1.0)
            push = np.where(chosen, 0.55 * overlap[..., axis] * sign, 0.0)
            places[:, axis] += push.sum(1) - push.sum(0)
        places = np.clip(places, low, np.maximum(low, high))
    return places, True


def place_outline(
    question: str,
    sections: Sequence[tuple[str, str, str | None, tuple[int, ...], Sequence[tuple[str, tuple[int, ...]]]]],
) -> tuple[list[Leaf], float]:
    """The outline as a tree from left to right: question, sections, their lines; a parent by its first.

    Args:
        question: the root.
        sections: (number, title, parent's number or None, evidence, lines as (text, evidence)) in reading
            order, a parent before its children.

    Returns:
        The leaves, the question first, and the height of the drawing (its width is `WIDTH`).
    """
    depth = max((number.count(".") + 1 for number, *_ in sections), default=1)
    indent = 230.0
    column = 200.0 if depth < 3 else 160.0
    lines_at = indent + column * depth
    leaves: list[Leaf] = []
    y = 30.0
    for number, title, parent, evidence, points in sections:
        level = number.count(".")
        x = indent + column * level
        label = wrapped(f"{number} {title}", column - 48.0, 3, bold=True)
        head = y
        below: list[Leaf] = []
        for i, (text, ids) in enumerate(points):
            drawn = wrapped(text, WIDTH - lines_at - 30.0, 2)
            below.append(Leaf(f"{number}/{i}", drawn, tuple(ids), "point", lines_at, y, number))
            y += 10.0 + 16.0 * len(drawn)
        everything = tuple(dict.fromkeys([*evidence, *(i for _, ids in points for i in ids)]))
        leaves.append(Leaf(number, label, everything, "section", x, head, parent or ""))
        leaves += below
        y = max(y, head + 10.0 + 16.0 * len(label)) + (6.0 if points else 2.0)
    total = tuple(dict.fromkeys(i for leaf in leaves for i in leaf.evidence))
    root = Leaf("", wrapped(question, indent - 60.0, 9, bold=True), total, "question", 14.0, 30.0, None)
    return [root, *leaves], max(y, 30.0 + 16.0 * len(root.label) + 20.0)


def wrapped(text: str, width: float, most: int, *, bold: bool = False) -> tuple[str, ...]:
    """A text in at most `most` lines of at most `width`, set in 12.5 px; an ellipsis says that it was cut."""
    size = 13.5 if bold else 12.5
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
            continue
        # A word that fits on no line is broken wherever it has to be.
        while text_width(word, size) > width:
            fits = next(n for n in range(len(word), 0, -1) if n == 1 or text_width(word[:n], size) <= width)
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    lines = [line for line in lines if line] or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1].rstrip('.,;: ')}…"]
    return tuple(lines)


def communities_by_size(members: Mapping[int, int | None]) -> dict[int, int]:
    """A number from 0 for every community with two members or more, the largest first."""
    count: dict[int, int] = {}
    for community in members.values():
        if community is not None:
            count[community] = count.get(community, 0) + 1
    order = sorted((c for c in count if count[c] > 1), key=lambda c: (-count[c], c))
    return {community: i for i, community in enumerate(order)}


def link_width(evidence: int) -> float:
    """How thick a link is drawn: thin for one piece of evidence, at most 5."""
    return round(1.1 + min(3.9, 1.2 * math.log2(max(1, evidence))), 2)
