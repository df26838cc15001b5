"""Codes to compare with: what a state of the trellis decodes to in QTIP, in EXL3, and in a table of random
values.

A code of the trellis gives every state one value, or a pair of values in HYB's case. All are brought to mean
0 and variance 1 over all states, as MUL-BAL's are by their affine map, so that they differ in geometry only.
The formulas are those of the published implementations of QTIP (Tseng et al. 2024) and of the EXL3 format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.methods.proteus.generators import Generator
from assay.methods.proteus.trellis import Trellis

# QTIP's 1MAD and EXL3's mul1 are members of the MUL-BAL family; their own scales are fixed, near 1/147.8.
ONE_MAD = Generator(multiplier=34038481, addend=76625530, shift=0, signs=(1, 1, 1, 1))
MUL1 = Generator(multiplier=0x83DCD12D, addend=0, shift=0, signs=(1, 1, 1, 1))

HYB_TABLE_BITS = 9
HYB_SAMPLES = 1 << 16
HYB_START_VARIANCE = 1.7


@dataclass(frozen=True)
class Code:
    """The values of all states of a trellis, mean 0 and variance 1.

    Attributes:
        name: as in the literature.
        values: [states], or [states, V] with V values a state.
    """

    name: str
    values: Float[Tensor, " states *V"]

    @property
    def window(self) -> int:
        """Bits of a state, L."""
        return len(self.values).bit_length() - 1

    def trellis(self, bits: int, length: int = 256) -> Trellis:
        """The trellis of this code at `bits` bits a weight."""
        values_per_state = 1 if self.values.ndim == 1 else self.values.shape[1]
        return Trellis(self.window, bits, values_per_state, length)


def standardized(name: str, values: Float[Tensor, " states *V"]) -> Code:
    """The code with the affine map of `values` that has mean 0 and variance 1 over all states."""
    exact = values.to(torch.float64)
    return Code(name, ((exact - exact.mean()) / exact.std(correction=0)).to(torch.float32))


def unit_affine(generator: Generator, window: int) -> tuple[float, float]:
    """(alpha, beta) with which the code alpha z + beta has mean 0 and variance 1 over all 2^window states."""
    raw = generator.table(window).to(torch.float64)
    alpha = 1.0 / float(raw.std(correction=0))
    return alpha, -alpha * float(raw.mean())


def mulbal(generator: Generator, window: int) -> Code:
    """The MUL-BAL code of a generator."""
    return standardized("mul-bal", generator.table(window))


def one_mad(window: int) -> Code:
    """QTIP's 1MAD: the sum of the bytes of one multiply-add."""
    return standardized("1mad", ONE_MAD.table(window))


def mul1(window: int) -> Code:
    """EXL3's mul1: the sum of the bytes of one multiplication."""
    return standardized("mul1", MUL1.table(window))


def three_inst(window: int) -> Code:
    """QTIP's 3INST: the sum of two half-precision numbers whose signs, mantissas and low exponents vary."""
    return standardized("3inst", _sum_of_halves(_hashed(window, 89226354, 64248484)))


def mcg(window: int) -> Code:
    """EXL3's mcg: 3INST with a multiplicative congruential generator."""
    return standardized("mcg", _sum_of_halves(_hashed(window, 0xCBAC1FED, 0)))


def hyb(window: int) -> Code:
    """QTIP's HYB: pairs from a table of 512 centres, addressed by a hash and mirrored in the first
    coordinate.

    With s the state and k = s (s + 1), bits 6 to 14 of k are the row and bit 15 is the sign. The hash was
    made for windows of 16 bits; in windows of fewer than 9 it cannot reach all of the table.
    """
    state = torch.arange(1 << window)
    hashed = state * (state + 1)
    values = _hyb_table()[(hashed >> (15 - HYB_TABLE_BITS)) & ((1 << HYB_TABLE_BITS) - 1)].clone()
    values[:, 0] *= 1 - 2 * ((hashed >> 15) & 1)
    return standardized("hyb", values)


def gaussian_table(window: int, seed: int = 0) -> Code:
    """Independent Gaussian values (QTIP's RPTC): the code that computed ones imitate, in a table."""
    random = torch.Generator().manual_seed(seed)
    return standardized("gaussian", torch.randn(1 << window, generator=random))


CODES: dict[str, Callable[[int], Code]] = {
    "1mad": one_mad,
    "3inst": three_inst,
    "mcg": mcg,
    "mul1": mul1,
    "hyb": hyb,
    "gaussian": gaussian_table,
}


def lloyd_max(bits: int) -> Float[Tensor, " levels"]:
    """The 2^bits levels of the scalar quantizer that is optimal for N(0, 1), ascending (Lloyd 1982, Max
    1960).

    Alternates the two conditions of optimality: edges halfway between levels, levels at the mean of their
    cell.
    """
    levels = torch.special.ndtri((torch.arange(1 << bits, dtype=torch.float64) + 0.5) / (1 << bits))
    while True:
        edges = torch.cat([_INFINITE, (levels[1:] + levels[:-1]) / 2, -_INFINITE])
        density = torch.exp(-0.5 * edges.square()) / math.sqrt(2 * math.pi)
        means = (density[:-1] - density[1:]) / torch.special.ndtr(edges).diff()
        if float((means - levels).abs().max()) < 1e-12:
            return means
        levels = means


_INFINITE = torch.tensor([-math.inf], dtype=torch.float64)


def _hashed(window: int, multiplier: int, addend: int) -> Int[np.ndarray, " states"]:
    """`multiplier * state + addend` in uint32."""
    return np.arange(1 << window, dtype=np.uint32) * np.uint32(multiplier) + np.uint32(addend)


def _sum_of_halves(words: Int[np.ndarray, " states"]) -> Float[Tensor, " states"]:
    """The sum of the two half-precision numbers that the masked words hold."""
    masked = (words & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    halves = masked.astype("<u4").view("<f2").astype(np.float32).reshape(-1, 2)
    return torch.from_numpy(halves.sum(axis=1))


@lru_cache(maxsize=1)
def _hyb_table() -> Float[Tensor, "centres 2"]:
    """The centres of k-means on standard normal pairs, from a fixed sample."""
    from scipy.cluster.vq import kmeans2

    # A start with nearly the density that is optimal for many centres: normal, but wider than the source.
    centre = np.arange(1 << HYB_TABLE_BITS)
    radius = np.sqrt(-2.0 * HYB_START_VARIANCE * np.log1p(-(centre + 0.5) / len(centre)))
    angle = centre * math.pi * (3.0 - math.sqrt(5.0))
    start = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    sample = np.random.default_rng(0).standard_normal((HYB_SAMPLES, 2))
    centres, _ = kmeans2(sample, start, iter=12, minit="matrix")
    return torch.from_numpy(centres).to(torch.float32)
