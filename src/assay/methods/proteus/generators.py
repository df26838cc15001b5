"""MUL-BAL: code values computed from a trellis state by one multiplication and a signed byte sum.

A state s becomes the integer

    u = (M s + A) mod 2^32,    u ^= u >> r    (unless r = 0),    z = sum_i sigma_i byte_i(u),

with byte 0 the least significant; the code value is the affine `alpha z + beta`, two numbers a layer. A sum
of four bytes that are nearly uniform and nearly independent is nearly Gaussian (standard deviation 147.8,
excess kurtosis -0.3), and costs one dot-product instruction on most hardware. The name and the idea of
integer mixing followed by an affine map are the paper's; the formula is ours, in the family of QTIP's 1MAD
(Tseng et al. 2024).

z is the plain signed sum, without a centring constant: its mean is `beta`'s business. It lies in [-1020,
1020].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from assay.errors import InputError

WORD = 1 << 32
RECORD_LENGTH = 8


@dataclass(frozen=True)
class Generator:
    """The parameters of one computed code.

    Attributes:
        multiplier: odd, in [1, 2^32).
        addend: in [0, 2^32).
        shift: how far the word is shifted before it is mixed with itself, 0 (no mixing) to 31.
        signs: +1 or -1 for each byte, least significant first.

    Raises:
        InputError: a parameter is outside its range.
    """

    multiplier: int
    addend: int = 0
    shift: int = 0
    signs: tuple[int, int, int, int] = (1, -1, 1, -1)

    def __post_init__(self) -> None:
        if not 0 < self.multiplier < WORD or self.multiplier % 2 == 0:
            raise InputError(f"generator multiplier {self.multiplier} must be odd and between 1 and 2^32 - 1")
        if not 0 <= self.addend < WORD:
            raise InputError(f"generator addend {self.addend} must be between 0 and 2^32 - 1")
        if not 0 <= self.shift < 32:
            raise InputError(f"generator shift {self.shift} must be between 0 and 31")
        if len(self.signs) != 4 or any(sign not in (-1, 1) for sign in self.signs):
            raise InputError(f"generator signs {self.signs} must be four values, each +1 or -1")

    def raw(self, states: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """z of every state (>= 0, below 2^31), int32. The uint32 arithmetic is exact: it runs in int64."""
        word = (states.to(torch.int64) * self.multiplier + self.addend) & (WORD - 1)
        if self.shift:
            word = word ^ (word >> self.shift)
        total = torch.zeros_like(word)
        for index, sign in enumerate(self.signs):
            total += sign * ((word >> (8 * index)) & 0xFF)
        return total.to(torch.int32)

    def table(self, window: int) -> Int[Tensor, " states"]:
        """z of all 2^window states, int32: for the encoder and for tests; decoding needs no table."""
        return self.raw(torch.arange(1 << window))

    def record(self, *, candidate: int = -1) -> Int[Tensor, " 8"]:
        """The parameters as they are stored with a layer, int32.

        The entries are multiplier and addend as bit patterns, shift, the signs packed (bit i is set where the
        sign of byte i is -1), `candidate` (the index in the pool that it was chosen from, -1 for none), and
        zeros.
        """
        signs = sum(1 << index for index, sign in enumerate(self.signs) if sign < 0)
        entries = [_signed(self.multiplier), _signed(self.addend), self.shift, signs, candidate]
        entries += [0] * (RECORD_LENGTH - len(entries))
        return torch.tensor(entries, dtype=torch.int32)

    @classmethod
    def from_record(cls, record: Int[Tensor, " 8"]) -> Generator:
        """The generator of a stored record.

        Raises:
            InputError: the record is not 8 integers, or its entries are outside their ranges.
        """
        if record.shape != (RECORD_LENGTH,) or record.is_floating_point():
            given = f"{record.dtype} of shape {list(record.shape)}"
            raise InputError(f"a generator record is {RECORD_LENGTH} integers, not {given}")
        multiplier, addend, shift, signs, _candidate, *reserved = record.tolist()
        if not 0 <= signs < 16 or any(reserved):
            raise InputError(f"generator record {record.tolist()} is damaged or of a newer version of assay")
        minus = [bool(signs >> index & 1) for index in range(4)]
        first, second, third, fourth = (-1 if flag else 1 for flag in minus)
        return cls(multiplier % WORD, addend % WORD, shift, (first, second, third, fourth))


def _signed(word: int) -> int:
    """The int32 with the same bits as an unsigned 32-bit word."""
    return word - WORD if word >= WORD // 2 else word
