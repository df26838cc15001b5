"""The kernels in numba, where there is no C++ compiler: the same integers, one thread, ten times slower."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numba import njit
from torch import Tensor

from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels.reference import SIDE, quantize_activations

HALF = 8

name = "numba"


def matvec(
    qweight: UInt8[Tensor, "mt nt bytes"],
    generator: Generator,
    window: int,
    bits: int,
    x: Float[Tensor, "batch n"],
    *,
    int8: bool,
) -> Float[Tensor, "batch m"]:
    """As `assay.methods.proteus.kernels.reference.matvec`."""
    code = _code(qweight, generator, window, bits)
    out = np.zeros((len(x), SIDE * qweight.shape[0]), dtype=np.float32)
    if not int8:
        _matvec_float(*code, x.detach().numpy(), out)
        return torch.from_numpy(out)
    quantized, scale = quantize_activations(x.detach())
    middle = 255 * sum(generator.signs) // 2
    _matvec_int8(*code, np.int32(middle), quantized.numpy(), scale.numpy(), out)
    common = middle * x.detach().sum(-1, keepdim=True, dtype=torch.float64)
    return torch.from_numpy(out) + common.to(torch.float32)


def unpack_codes(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> Int[Tensor, "m n"]:
    """As `assay.methods.proteus.kernels.reference.unpack_codes`."""
    row_tiles, column_tiles, _ = qweight.shape
    out = np.empty((SIDE * row_tiles, SIDE * column_tiles), dtype=np.int32)
    _unpack(*_code(qweight, generator, window, bits), out)
    return torch.from_numpy(out)


def unpack_transposed(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> Float[Tensor, "n m"]:
    """Z^T in float32."""
    return unpack_codes(qweight, generator, window, bits).T.to(torch.float32)


def _code(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> tuple[np.ndarray, np.uint64, np.uint64, np.uint32, np.uint32, np.uint32, np.ndarray]:
    """What every loop takes first; the tiles as 32-bit words."""
    words = qweight.numpy().view("<u4")
    mask = np.uint64((1 << window) - 1)
    multiplier, addend = np.uint32(generator.multiplier), np.uint32(generator.addend)
    return (
        words,
        np.uint64(bits),
        mask,
        multiplier,
        addend,
        np.uint32(generator.shift),
        np.array(generator.signs, dtype=np.int32),
    )


@njit(nogil=True, cache=True)
def _decode(tile, bits, mask, multiplier, addend, shift, signs, states, values):
    """The values of a tile, column by column: one loop cuts out the states, one is for LLVM to vectorise.

    The windows of eight rows, half a column, lie in one 64-bit word.
    """
    for half in range(2 * SIDE):
        start = np.uint64(HALF * half) * bits
        word = start >> np.uint64(5)
        following = np.uint64(0) if word + np.uint64(1) == np.uint64(tile.size) else word + np.uint64(1)
        joined = np.uint64(tile[word]) | np.uint64(tile[following]) << np.uint64(32)
        stream = joined >> (start & np.uint64(31))
        for row in range(HALF):
            states[HALF * half + row] = np.uint32((stream >> (bits * np.uint64(row))) & mask)
    first, second, third, fourth = signs[0], signs[1], signs[2], signs[3]
    low = np.uint32(255)
    for position in range(states.size):
        word = np.uint32(np.uint32(states[position] * multiplier) + addend)
        word = np.uint32(word ^ (word >> shift)) if shift else word
        values[position] = (
            first * np.int32(word & low)
            + second * np.int32((word >> np.uint32(8)) & low)
            + third * np.int32((word >> np.uint32(16)) & low)
            + fourth * np.int32(word >> np.uint32(24))
        )


@njit(nogil=True, cache=True)
def _matvec_float(words, bits, mask, multiplier, addend, shift, signs, x, out):
    states, values = np.empty(SIDE * SIDE, dtype=np.uint32), np.empty(SIDE * SIDE, dtype=np.int32)
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            _decode(words[i, j], bits, mask, multiplier, addend, shift, signs, states, values)
            for row in range(x.shape[0]):
                target = out[row, SIDE * i : SIDE * (i + 1)]
                for column in range(SIDE):
                    activation = x[row, SIDE * j + column]
                    for k in range(SIDE):
                        target[k] += np.float32(values[SIDE * column + k]) * activation


@njit(nogil=True, cache=True)
def _matvec_int8(words, bits, mask, multiplier, addend, shift, signs, middle, x, scale, out):
    states, values = np.empty(SIDE * SIDE, dtype=np.uint32), np.empty(SIDE * SIDE, dtype=np.int32)
    inner = np.empty(SIDE, dtype=np.int32)
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            _decode(words[i, j], bits, mask, multiplier, addend, shift, signs, states, values)
            for row in range(x.shape[0]):
                inner[:] = 0
                for column in range(SIDE):
                    activation = np.int32(x[row, SIDE * j + column])
                    for k in range(SIDE):
                        inner[k] += (values[SIDE * column + k] - middle) * activation
                for k in range(SIDE):
                    out[row, SIDE * i + k] += np.float32(inner[k]) * scale[row, j]


@njit(nogil=True, cache=True)
def _unpack(words, bits, mask, multiplier, addend, shift, signs, out):
    states, values = np.empty(SIDE * SIDE, dtype=np.uint32), np.empty(SIDE * SIDE, dtype=np.int32)
    for i in range(words.shape[0]):
        for j in range(words.shape[1]):
            _decode(words[i, j], bits, mask, multiplier, addend, shift, signs, states, values)
            for column in range(SIDE):
                for row in range(SIDE):
                    out[SIDE * i + row, SIDE * j + column] = values[SIDE * column + row]
