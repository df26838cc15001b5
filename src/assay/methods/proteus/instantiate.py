"""Choosing a code and its scale for one layer, on a sample of its tiles.

The tiles are half drawn at random, half those of the largest energy. Every candidate encodes them, is mapped
affinely onto its targets, and is judged by the error weighted with the second moment of the inputs.

Source: the abstract ("selecting from a tiny, pre-vetted candidate pool"); the procedure is ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.methods.proteus.codes import mulbal
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.ldlq import to_sequences
from assay.methods.proteus.trellis import Trellis

# encode_tiles, or something that gives the same states elsewhere: (x, values, trellis) -> states.
Encode = Callable[[Tensor, Tensor, Trellis], Int[Tensor, "n steps"]]

SAMPLE_TILES = 64
# Candidates are compared on trellises of at most this window; larger ones take long and differ less.
LARGEST_SEARCH_WINDOW = 12
SCALES = (0.94, 1.0, 1.06, 1.12)
# So many of the candidates are tried at every scale.
FINALISTS = 2


@dataclass(frozen=True)
class Sample:
    """Tiles to try candidates on.

    Attributes:
        tiles: sequences in trellis time, scaled like the code.
        importance: what an error in each weight costs, relative to the mean.
    """

    tiles: Float[Tensor, "n 256"]
    importance: Float[Tensor, "n 256"]


@dataclass(frozen=True)
class Choice:
    """A candidate, fitted.

    Attributes:
        candidate: its index.
        scale: by what its unit-variance values are multiplied before encoding.
        gain: the least-squares factor of the unit-variance values.
        offset: the least-squares constant.
        error: the weighted squared error a weight, after the fit. The fit makes candidates comparable;
            encoding itself uses `scale`.
    """

    candidate: int
    scale: float
    gain: float
    offset: float
    error: float


def sample_tiles(
    weights: Float[Tensor, "m n"], importance: Float[Tensor, " n"], *, seed: int, name: str
) -> Sample:
    """Up to 64 tiles of a matrix: half at random, half those with the largest sum of squares.

    Args:
        weights: incoherent weights of unit mean square; both dimensions multiples of 16.
        importance: the diagonal of the inputs' second moment.
        seed: of the draw, together with `name`.
        name: the module's path.
    """
    tiles = to_sequences(weights).flatten(0, 1)
    costs = to_sequences((importance / importance.mean()).expand_as(weights)).flatten(0, 1)
    count = min(len(tiles), SAMPLE_TILES)
    digest = hashlib.sha256(f"{seed}\0tiles\0{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") % 2**63)
    loudest = tiles.square().sum(1).cpu().argsort(descending=True, stable=True)[: count // 2]
    others = torch.ones(len(tiles), dtype=torch.bool)
    others[loudest] = False
    drawn = others.nonzero()[:, 0]
    drawn = drawn[torch.randperm(len(drawn), generator=generator)[: count - len(loudest)]]
    chosen = torch.cat([loudest, drawn]).to(tiles.device)
    return Sample(tiles[chosen], costs[chosen])


def instantiate(sample: Sample, candidates: Sequence[Generator], trellis: Trellis, encode: Encode) -> Choice:
    """The generator and the scale for a layer.

    The search runs on a trellis with a window of at most 12 bits; for a larger one, the two best are compared
    again with the real one.

    Args:
        sample: tiles of the layer.
        candidates: the pool.
        trellis: that of the layer.
        encode: the encoder.
    """
    search = replace(trellis, window=min(trellis.window, LARGEST_SEARCH_WINDOW))
    best = choose(sample, [mulbal(one, search.window).values for one in candidates], search, encode)
    if search != trellis:
        best = [
            fit(
                sample,
                one.candidate,
                mulbal(candidates[one.candidate], trellis.window).values,
                one.scale,
                trellis,
                encode,
            )
            for one in best
        ]
    return min(best, key=lambda choice: (choice.error, choice.candidate))


def choose(
    sample: Sample,
    candidates: Sequence[Float[Tensor, " states *V"]],
    trellis: Trellis,
    encode: Encode,
) -> list[Choice]:
    """Candidates at their best scale, the best first (ties: the lower index).

    All candidates are compared at scale 1; the two best are then tried at the other scales, and only they are
    returned.

    Args:
        sample: the tiles.
        candidates: values of every state, zero mean and unit variance.
        trellis: that of the candidates.
        encode: the encoder.
    """
    first = [fit(sample, index, values, 1.0, trellis, encode) for index, values in enumerate(candidates)]
    finalists = sorted(first, key=lambda choice: (choice.error, choice.candidate))[:FINALISTS]
    best = []
    for choice in finalists:
        values = candidates[choice.candidate]
        others = [
            fit(sample, choice.candidate, values, scale, trellis, encode) for scale in SCALES if scale != 1.0
        ]
        best.append(min([choice, *others], key=lambda one: one.error))
    return sorted(best, key=lambda choice: (choice.error, choice.candidate))


def fit(
    sample: Sample,
    candidate: int,
    values: Float[Tensor, " states *V"],
    scale: float,
    trellis: Trellis,
    encode: Encode,
) -> Choice:
    """Encode the sample with a code at a scale, and map the code affinely onto its targets."""
    states = encode(sample.tiles, scale * values, trellis)
    decoded = values.to(sample.tiles.device)[states.to(sample.tiles.device)].flatten(1).double()
    target, cost = sample.tiles.double(), sample.importance.double()
    # In float64: the variance of a constant target may otherwise come out below zero.
    centre = decoded.mean()
    variance = float((decoded - centre).square().mean())
    covariance = float(((decoded - centre) * target).mean())
    gain = covariance / variance if variance > 0 else 0.0
    offset = float(target.mean()) - gain * float(centre)
    error = float((cost * (target - gain * decoded - offset).square()).mean())
    return Choice(candidate, scale, gain, offset, error)
