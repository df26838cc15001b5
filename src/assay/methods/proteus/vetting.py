"""Vetting: the search for generators whose codes are good on a trellis.

Random generators are filtered by the scores of `code_scores` and ranked by what counts, the mean squared
error of encoded Gaussian sequences. Thresholds and search are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.code_scores import Scores, independent_coverage, score
from assay.methods.proteus.codes import CODES, Code, mulbal
from assay.methods.proteus.generators import WORD, Generator
from assay.methods.proteus.trellis import Trellis
from assay.methods.proteus.viterbi import encode_tiles

POOL_SIZE = 8
TILE = 256


def vet_generator(generator: Generator, window: int, bits: int) -> Scores:
    """The scores of a generator's code on a trellis of one value a state."""
    return score(mulbal(generator, window).values, bits)


# thresholds


@dataclass(frozen=True)
class Thresholds:
    """What a generator's scores must be for the search to encode with it, at one window and number of bits.

    Attributes:
        excess_kurtosis: lowest and highest.
        wasserstein: below this. Wider in small windows, where few values cannot be near a Gaussian.
        overlap_correlation: below this, for values and for squares. Wider in small windows, for the same
            reason.
        branch_spread: at least this.
        branch_coverage: below this; a fixed share of what independent Gaussian values would have.
        pair_coverage: below this.
    """

    excess_kurtosis: tuple[float, float]
    wasserstein: float
    overlap_correlation: float
    branch_spread: float
    branch_coverage: float
    pair_coverage: float

    @classmethod
    def at(cls, window: int, bits: int) -> Thresholds:
        """The thresholds that the pool was made with; they were fixed before its searches ran."""
        missing_bits = max(0, 12 - window)
        return cls(
            excess_kurtosis=(-0.6, 0.2),
            wasserstein=0.03 * 2 ** (missing_bits / 4),
            overlap_correlation=0.02 * 2 ** (missing_bits / 2),
            branch_spread=1.0,
            branch_coverage=0.85 * independent_coverage(1 << bits),
            pair_coverage=2.0,
        )

    def failed(self, scores: Scores) -> list[str]:
        """The names of the criteria that these scores fail; none when they are accepted."""
        low, high = self.excess_kurtosis
        correlation = max(scores.overlap_correlation, scores.overlap_correlation_squares)
        passed = {
            "excess_kurtosis": low <= scores.excess_kurtosis <= high,
            "wasserstein": scores.wasserstein < self.wasserstein,
            "overlap_correlation": correlation < self.overlap_correlation,
            "branch_spread": scores.branch_spread >= self.branch_spread,
            "branch_coverage": scores.branch_coverage < self.branch_coverage,
            "pair_coverage": scores.pair_coverage < self.pair_coverage,
        }
        return [name for name, good in passed.items() if not good]


# mean squared error


def gaussian_tiles(count: int, seed: int) -> Float[Tensor, "count 256"]:
    """Standard normal sequences of 256 weights, from a seed."""
    return torch.randn(count, TILE, generator=torch.Generator().manual_seed(seed))


def squared_errors(
    code: Code, bits: int, x: Float[Tensor, "n 256"], *, threads: int | None = None
) -> Float[Tensor, " n"]:
    """The mean squared error of every sequence, encoded with tail biting (windowed first pass); float64."""
    states = encode_tiles(x, code.values, code.trellis(bits), tail="windowed", threads=threads)
    decoded = code.values[states.long()].reshape(x.shape)
    return (decoded - x).to(torch.float64).square().mean(dim=1)


@dataclass(frozen=True)
class Estimate:
    """A mean over sequences and its standard error."""

    mean: float
    standard_error: float


def estimate(samples: Float[Tensor, " n"]) -> Estimate:
    """The mean of independent samples."""
    return Estimate(float(samples.mean()), float(samples.std()) / math.sqrt(len(samples)))


# search

Progress = Callable[[str, int, int], None]

# Of the candidates that pass the thresholds, so many with the best branch coverage are encoded with, and so
# many of these a second time on more data. Among those that pass, coverage says little about the error: the
# first is large.
SHORTLIST = 512
FINALISTS = 48
# Added to the seed of a search: for the data on which it chooses, and for the fresh data on which it reports.
SELECTION_SEED = 1
FRESH_SEED = 2


@dataclass(frozen=True)
class Candidate:
    """A generator with its scores at the window and number of bits of a search."""

    generator: Generator
    scores: Scores


def search(
    window: int,
    bits: int,
    *,
    candidates: int = 4000,
    seed: int = 0,
    threads: int | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Search random generators for a pool: filter by scores, rank by the error of encoded Gaussian sequences.

    Only generators without a shift are drawn: mixing costs every decoded weight two instructions, and of 3000
    random generators a window (8, 10, 12) the best, and the best hundredth, had none. All candidates are
    measured on the same data. Choosing the best of many on one data set is optimistic, so the errors in the
    report, of the pool and of the codes that it is compared with, come from fresh data as well.

    Args:
        window: bits of a state, L.
        bits: bits a weight, K.
        candidates: generators to draw.
        seed: of the draws and of the data.
        threads: as in `encode_tiles`.
        on_progress: called with the name of a stage, how much of it is done, and how much there is.

    Returns:
        A report of JSON values: the thresholds and how many candidates each of them rejected; the pool, best
        first, with parameters, scores and errors; the same errors for other codes, with differences on the
        same sequences.

    Raises:
        InputError: there is no such trellis, `candidates` is not positive, or none was accepted.
    """
    trellis = Trellis(window, bits, length=TILE)
    if candidates < 1:
        raise InputError(f"{candidates} candidates: at least 1 is needed")
    measure = _Measure(bits, threads, on_progress or (lambda stage, done, total: None))
    thresholds = Thresholds.at(window, bits)
    accepted, rejected = _accepted(
        draw(candidates, seed, mixing=False), window, bits, thresholds, measure.on_progress
    )
    if not accepted:
        raise InputError(f"none of {candidates} candidates passed the thresholds: draw more")

    tiles = selection_tiles(trellis)
    data = gaussian_tiles(tiles, seed + SELECTION_SEED)
    shortlist = sorted(accepted, key=lambda candidate: candidate.scores.branch_coverage)[:SHORTLIST]
    finalists = [entry for entry, _ in measure.ranked(shortlist, window, data[: tiles // 4], "shortlist")]
    pool = measure.ranked(finalists[:FINALISTS], window, data, "finalists")[:POOL_SIZE]
    fresh = gaussian_tiles(4 * tiles, seed + FRESH_SEED)
    return {
        "window": window,
        "bits": bits,
        "seed": seed,
        "candidates": candidates,
        "accepted": len(accepted),
        "rejected": rejected,
        "thresholds": asdict(thresholds),
        "selection_samples": tiles * TILE,
        "fresh_samples": 4 * tiles * TILE,
        **_report(pool, window, fresh, measure),
    }


def draw(count: int, seed: int, *, mixing: bool) -> Iterator[Generator]:
    """Random generators with different multipliers, half of them with a shift if `mixing`, else none."""
    random = np.random.default_rng(seed)
    seen = set()
    while len(seen) < count:
        multiplier = 2 * int(random.integers(WORD // 2)) + 1
        addend = int(random.integers(WORD))
        shift = int(random.integers(1, 32)) if mixing and random.random() < 0.5 else 0
        # A code and its negative are equally good, so the first sign is fixed.
        second, third, fourth = (int(sign) for sign in random.choice([-1, 1], size=3))
        if multiplier not in seen:
            seen.add(multiplier)
            yield Generator(multiplier, addend, shift, (1, second, third, fourth))


def selection_tiles(trellis: Trellis) -> int:
    """Sequences to choose on: 2^17 weights up to windows of 12 bits, 2^15 at 16, where each costs more."""
    return (1 << (17 - max(0, (trellis.window - 12) // 2))) // TILE


def _accepted(
    generators: Iterable[Generator], window: int, bits: int, thresholds: Thresholds, on_progress: Progress
) -> tuple[list[Candidate], dict[str, int]]:
    """The candidates that fail no threshold, and how many fail each."""
    accepted = []
    rejected: Counter[str] = Counter(dict.fromkeys(asdict(thresholds), 0))
    generators = list(generators)
    for done, generator in enumerate(generators, start=1):
        candidate = Candidate(generator, vet_generator(generator, window, bits))
        failed = thresholds.failed(candidate.scores)
        rejected.update(failed)
        if not failed:
            accepted.append(candidate)
        on_progress("scores", done, len(generators))
    return accepted, dict(rejected)


@dataclass(frozen=True)
class _Measure:
    bits: int
    threads: int | None
    on_progress: Progress

    def errors(
        self, codes: Sequence[Code], x: Float[Tensor, "n 256"], stage: str
    ) -> Float[Tensor, "codes n"]:
        """`squared_errors` of every code on the same sequences."""
        rows = []
        for done, code in enumerate(codes, start=1):
            rows.append(squared_errors(code, self.bits, x, threads=self.threads))
            self.on_progress(stage, done, len(codes))
        return torch.stack(rows)

    def ranked(
        self, candidates: Sequence[Candidate], window: int, x: Float[Tensor, "n 256"], stage: str
    ) -> list[tuple[Candidate, Estimate]]:
        """Candidates by their error, lowest first."""
        errors = self.errors([mulbal(entry.generator, window) for entry in candidates], x, stage)
        order = errors.mean(dim=1).argsort(stable=True).tolist()
        return [(candidates[index], estimate(errors[index])) for index in order]


def _report(
    pool: Sequence[tuple[Candidate, Estimate]], window: int, fresh: Float[Tensor, "n 256"], measure: _Measure
) -> dict[str, Any]:
    peers = [make(window) for name, make in CODES.items() if name != "hyb"]
    codes = [mulbal(candidate.generator, window) for candidate, _ in pool]
    errors = measure.errors([*codes, *peers], fresh, "fresh data")
    ours, theirs = errors[: len(pool)], errors[len(pool) :]
    return {
        "pool": [
            {
                "generator": asdict(candidate.generator),
                "scores": asdict(candidate.scores),
                "selection_error": asdict(selection),
                "error": asdict(estimate(row)),
            }
            for (candidate, selection), row in zip(pool, ours, strict=True)
        ],
        "pool_error": asdict(estimate(ours.mean(dim=0))),
        "peers": {
            code.name: {
                "scores": asdict(score(code.values, measure.bits)),
                "error": asdict(estimate(row)),
                "pool_minus_peer": asdict(estimate(ours.mean(dim=0) - row)),
                "first_minus_peer": asdict(estimate(ours[0] - row)),
            }
            for code, row in zip(peers, theirs, strict=True)
        },
    }
