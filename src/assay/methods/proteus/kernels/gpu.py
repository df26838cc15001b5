"""The kernels in Triton: for GPUs, and with TRITON_INTERPRET=1 for the CPU, which tests use.

The generator's record stays on the device: reading it would make every layer wait for the GPU.
"""

# Triton rewrites its kernels; as Python they are not well typed.
# pyright: basic, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.methods.proteus.kernels.reference import SIDE, quantize_activations

MOST_ROWS = 8
# Columns that a program decodes at once, over the rows of activations; and programs that fill a large GPU.
COLUMNS = 256
PROGRAMS = 1024


def matvec(
    qweight: UInt8[Tensor, "mt nt bytes"],
    record: Int[Tensor, " 8"],
    window: int,
    bits: int,
    x: Float[Tensor, "batch n"],
    *,
    int8: bool,
) -> Float[Tensor, "batch m"]:
    """As `assay.methods.proteus.kernels.reference.matvec`, MOST_ROWS rows of activations at a time."""
    return torch.cat([_matvec(qweight, record, window, bits, part, int8=int8) for part in x.split(MOST_ROWS)])


def _matvec(
    qweight: UInt8[Tensor, "mt nt bytes"],
    record: Int[Tensor, " 8"],
    window: int,
    bits: int,
    x: Float[Tensor, "rows n"],
    *,
    int8: bool,
) -> Float[Tensor, "rows m"]:
    row_tiles, column_tiles, _ = qweight.shape
    rows = triton.next_power_of_2(len(x))
    tiles = COLUMNS // SIDE // rows
    # A matrix with few rows of tiles is also split along its columns. The parts are added afterwards in a
    # fixed order: atomic additions would make results vary from run to run.
    splits = max(1, min(triton.cdiv(column_tiles, tiles), PROGRAMS // row_tiles))
    per_split = triton.cdiv(triton.cdiv(column_tiles, splits), tiles) * tiles
    parts = torch.empty(splits, len(x), SIDE * row_tiles, dtype=torch.float32, device=x.device)
    quantized, scale = quantize_activations(x) if int8 else (x, x)
    with torch.cuda.device_of(x):
        _matvec_kernel[(row_tiles, splits)](
            qweight.view(torch.int32), record, x, quantized, scale, parts, len(x), column_tiles, per_split,
            (1 << window) - 1, BITS=bits, ROWS=rows, TILES=tiles, INT8=int8,
        )  # fmt: skip
    return parts.sum(0)


def unpack_codes(
    qweight: UInt8[Tensor, "mt nt bytes"], record: Int[Tensor, " 8"], window: int, bits: int
) -> Int[Tensor, "m n"]:
    """As `assay.methods.proteus.kernels.reference.unpack_codes`."""
    row_tiles, column_tiles, _ = qweight.shape
    out = torch.empty(SIDE * row_tiles, SIDE * column_tiles, dtype=torch.int32, device=qweight.device)
    tiles = COLUMNS // SIDE
    with torch.cuda.device_of(qweight):
        _unpack_kernel[(row_tiles, triton.cdiv(column_tiles, tiles))](
            qweight.view(torch.int32), record, out, column_tiles, (1 << window) - 1, BITS=bits, TILES=tiles
        )
    return out


@triton.jit
def _sign(record, byte: tl.constexpr):
    return 1 - 2 * ((tl.load(record + 3) >> byte) & 1)


@triton.jit
def _values(words, record, first_tile, last_tile, mask, BITS: tl.constexpr, TILES: tl.constexpr):
    """z of TILES tiles beside each other, [16, 16 TILES] int32; garbage from `last_tile` on."""
    row = tl.arange(0, 16)[:, None]
    column = tl.arange(0, 16 * TILES)[None, :]
    tile = tl.minimum(first_tile + column // 16, last_tile - 1)
    bit = BITS * (16 * (column % 16) + row)
    word = bit // 32
    following = (word + 1) % (8 * BITS)
    base = words + tile.to(tl.int64) * (8 * BITS)
    low = tl.load(base + word).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(base + following).to(tl.uint32, bitcast=True).to(tl.uint64)
    state = ((low | (high << 32)) >> (bit % 32).to(tl.uint64)).to(tl.uint32) & mask.to(tl.uint32)
    multiplier = tl.load(record).to(tl.uint32, bitcast=True)
    addend = tl.load(record + 1).to(tl.uint32, bitcast=True)
    shift = tl.load(record + 2).to(tl.uint32, bitcast=True)
    u = state * multiplier + addend
    u = u ^ tl.where(shift == 0, 0, u >> shift)
    z = _sign(record, 0) * (u & 255).to(tl.int32)
    z += _sign(record, 1) * ((u >> 8) & 255).to(tl.int32)
    z += _sign(record, 2) * ((u >> 16) & 255).to(tl.int32)
    z += _sign(record, 3) * (u >> 24).to(tl.int32)
    return z


@triton.jit
def _matvec_kernel(
    words, record, x, quantized, scale, out, rows, column_tiles, per_split, mask,
    BITS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    row_tile = tl.program_id(0)
    split = tl.program_id(1)
    width = column_tiles * 16
    row = tl.arange(0, ROWS)[:, None]
    words += row_tile.to(tl.int64) * column_tiles * (8 * BITS)
    balance = _sign(record, 0) + _sign(record, 1) + _sign(record, 2) + _sign(record, 3)
    middle = balance * 255 // 2
    total = tl.zeros((ROWS, 16), dtype=tl.float32)
    for begin in range(split * per_split, tl.minimum(column_tiles, (split + 1) * per_split), TILES):
        z = _values(words, record, begin, column_tiles, mask, BITS, TILES)
        column = begin * 16 + tl.arange(0, 16 * TILES)[None, :]
        inside = (row < rows) & (column < width)
        activations = tl.load(x + row * width + column, mask=inside, other=0.0)
        if INT8:
            integers = tl.load(quantized + row * width + column, mask=inside, other=0).to(tl.int32)
            products = (z - middle)[None, :, :] * integers[:, None, :]
            sums = tl.sum(tl.reshape(products, (ROWS, 16, TILES, 16)), axis=3)
            tile = begin + tl.arange(0, TILES)[None, :]
            present = (row < rows) & (tile < column_tiles)
            scales = tl.load(scale + row * column_tiles + tile, mask=present, other=0.0)
            total += tl.sum(sums.to(tl.float32) * scales[:, None, :], axis=2)
            total += middle.to(tl.float32) * tl.sum(activations, axis=1)[:, None]
        else:
            total += tl.sum(z.to(tl.float32)[None, :, :] * activations[:, None, :], axis=2)
    height = tl.num_programs(0) * 16
    target = out + (split * rows + row) * height + row_tile * 16 + tl.arange(0, 16)[None, :]
    tl.store(target, total, mask=row < rows)


@triton.jit
def _unpack_kernel(words, record, out, column_tiles, mask, BITS: tl.constexpr, TILES: tl.constexpr):
    row_tile = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILES
    z = _values(words + row_tile * column_tiles * (8 * BITS), record, first, column_tiles, mask, BITS, TILES)
    row = row_tile * 16 + tl.arange(0, 16)[:, None]
    column = first * 16 + tl.arange(0, 16 * TILES)[None, :]
    tl.store(out + row * (column_tiles * 16) + column, z, mask=column < column_tiles * 16)
