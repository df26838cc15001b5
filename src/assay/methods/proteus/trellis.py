"""The bitshift trellis and its packed bit stream.

A state is a window of `window` (L) bits; every step shifts `step_bits` (k = K V) new bits in at the low end:

    s_{t+1} = ((s_t << k) mod 2^L) | c_t.

The trellis bites its tail: the bit stream is circular, so T weights take exactly K T bits.

Layout (ours): with p = steps - 1 - t, the position counted backwards in trellis time, symbol c of position p
is at bits [k p, k p + k) of a little-endian stream. Then the state of position p is just the L-bit
little-endian window that starts at bit k p of the circular stream: a decoder needs one unaligned load, a
shift and a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from assay.errors import InputError

if TYPE_CHECKING:
    from assay.methods.proteus.generators import Generator

BITS = (2, 3, 4)
WINDOWS = range(4, 17)


@dataclass(frozen=True)
class Trellis:
    """A tail-biting bitshift trellis.

    Attributes:
        window: bits of a state (L), 4 to 16.
        bits: bits a weight (K), 2, 3 or 4.
        values_per_state: weights that one state decodes to (V), 1 or 2.
        length: weights a sequence (T).

    Raises:
        InputError: a number is outside its range, a sequence does not fill whole bytes, or it is shorter than
            a state.
    """

    window: int = 12
    bits: int = 2
    values_per_state: int = 1
    length: int = 256

    def __post_init__(self) -> None:
        if self.window not in WINDOWS:
            raise InputError(f"trellis window {self.window} must be 4 to 16 bits")
        if self.bits not in BITS:
            raise InputError(f"{self.bits} bits a weight: 2, 3 and 4 are supported")
        if self.values_per_state not in (1, 2):
            raise InputError(f"{self.values_per_state} values per state: 1 and 2 are supported")
        if self.step_bits > self.window:
            raise InputError(
                f"a trellis step of {self.step_bits} bits does not fit in a window of {self.window}: "
                f"use a window of at least {self.step_bits}"
            )
        total = self.bits * self.length
        if self.length <= 0 or self.length % self.values_per_state or total % 8:
            raise InputError(
                f"sequences of {self.length} weights at {self.bits} bits do not fill whole bytes: "
                f"use a multiple of 8"
            )
        if total < self.window:
            raise InputError(
                f"sequences of {self.length} weights have {total} bits, fewer than a state ({self.window}): "
                "use longer sequences or a smaller window"
            )

    @property
    def step_bits(self) -> int:
        """Bits that one step shifts in: k = K V."""
        return self.bits * self.values_per_state

    @property
    def steps(self) -> int:
        """States of a sequence: T / V."""
        return self.length // self.values_per_state

    @property
    def states(self) -> int:
        """The number of states, 2^L."""
        return 1 << self.window

    @property
    def branches(self) -> int:
        """Successors, and predecessors, of a state: 2^k."""
        return 1 << self.step_bits

    @property
    def prefixes(self) -> int:
        """What the successors of a state have in common takes 2^(L - k) values."""
        return 1 << (self.window - self.step_bits)

    @property
    def bytes(self) -> int:
        """Bytes of a packed sequence: K T / 8."""
        return self.bits * self.length // 8


def is_tail_biting(states: Int[Tensor, "n steps"], trellis: Trellis) -> bool:
    """Whether every step of every sequence, the one from its end to its start included, is in the trellis."""
    states = states.to(torch.int64)
    in_range = (states >= 0) & (states < trellis.states)
    before = states.roll(1, dims=-1)
    return bool((in_range & (states >> trellis.step_bits == before % trellis.prefixes)).all())


def pack(states: Int[Tensor, "n steps"], trellis: Trellis) -> UInt8[Tensor, "n bytes"]:
    """The bit streams of sequences of states.

    Args:
        states: tail-biting sequences, in trellis time.
        trellis: gives the shape of a sequence.

    Raises:
        InputError: the sequences have the wrong length, or are not paths of the tail-biting trellis: they
            could not be unpacked.
    """
    if states.ndim != 2 or states.shape[1] != trellis.steps or states.is_floating_point():
        raise InputError(
            f"states must be integers of shape [n, {trellis.steps}], not {states.dtype} {tuple(states.shape)}"
        )
    if not is_tail_biting(states, trellis):
        raise InputError(
            "these states are not tail-biting paths of the trellis: encode them with the same trellis first"
        )
    symbols = states.flip(-1).to(torch.int64) & (trellis.branches - 1)
    bits = _bits(symbols, trellis.step_bits).reshape(len(states), trellis.bytes, 8)
    weights = 1 << torch.arange(8, device=states.device)
    return (bits * weights).sum(-1).to(torch.uint8)


def unpack(packed: UInt8[Tensor, "n bytes"], trellis: Trellis) -> Int[Tensor, "n steps"]:
    """The states of packed sequences, int32, in trellis time: the inverse of `pack`.

    Every bit stream is a valid one, so any bytes can be unpacked.

    Raises:
        InputError: the sequences have the wrong number of bytes.
    """
    if packed.ndim != 2 or packed.shape[1] != trellis.bytes or packed.dtype != torch.uint8:
        given = f"{packed.dtype} {list(packed.shape)}"
        raise InputError(f"packed sequences must be uint8 of shape [n, {trellis.bytes}], not {given}")
    bits = _bits(packed.to(torch.int64), 8).flatten(1)
    starts = trellis.step_bits * torch.arange(trellis.steps, device=packed.device)
    states = torch.zeros(len(packed), trellis.steps, dtype=torch.int64, device=packed.device)
    for offset in range(trellis.window):
        states |= bits[:, (starts + offset) % bits.shape[1]] << offset
    return states.flip(-1).to(torch.int32)


def decode_tiles(
    packed: UInt8[Tensor, "n bytes"], generator: Generator, trellis: Trellis
) -> Int[Tensor, "n steps"]:
    """The integers z that packed sequences stand for, int32, in trellis time: what kernels do in registers.

    Raises:
        InputError: the sequences have the wrong number of bytes.
    """
    return generator.raw(unpack(packed, trellis))


def _bits(words: Int[Tensor, "n m"], width: int) -> Int[Tensor, "n m width"]:
    """The lowest `width` bits of every word, least significant first."""
    return (words[..., None] >> torch.arange(width, device=words.device)) & 1
