"""What the kernels compute, in plain torch: the documentation of the fast ones, and what runs without them.

A packed matrix Z of integers, [m, n], is stored as tiles of 16 x 16 weights, each a tail-biting sequence of
the trellis (`assay.methods.proteus.trellis`). Weight (row, column) of a tile is position 16 column + row,
column-major, because error feedback fixes 16 columns at a time; its value is z of the state there
(`Generator.raw`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

from assay.methods.proteus.generators import Generator
from assay.methods.proteus.trellis import Trellis, unpack

name = "torch"

SIDE = 16
LARGEST_INT8 = 127.0
# Below it 127 / maximum leaves float32; such a block of activations counts as zero.
SMALLEST_MAXIMUM = 1e-30


def unpack_codes(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> Int[Tensor, "m n"]:
    """Z, int32, in the order of the matrix."""
    row_tiles, column_tiles, _ = qweight.shape
    states = unpack(qweight.flatten(0, 1), Trellis(window, bits)).flip(-1)
    values = generator.raw(states).view(row_tiles, column_tiles, SIDE, SIDE)
    return values.permute(0, 3, 1, 2).reshape(row_tiles * SIDE, column_tiles * SIDE)


def quantize_activations(
    x: Float[Tensor, "batch n"],
) -> tuple[Int8[Tensor, "batch n"], Float[Tensor, "batch nt"]]:
    """Activations as x ~ scale * integer, with a scale for every 16 inputs (the columns of a tile).

    The largest magnitude of a block becomes 127. A block with an infinity or a NaN gets the scale NaN, so
    that the product says so.
    """
    blocks = x.view(len(x), -1, SIDE)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    finite = largest.isfinite()
    some = finite & (largest >= SMALLEST_MAXIMUM)
    inverse = torch.where(some, LARGEST_INT8 / largest, 0.0)
    quantized = torch.where(some, torch.round(blocks * inverse), 0.0).to(torch.int8)
    scale = torch.where(finite, torch.where(some, largest / LARGEST_INT8, 0.0), torch.nan)
    return quantized.flatten(1), scale.squeeze(-1)


def matvec(
    qweight: UInt8[Tensor, "mt nt bytes"],
    generator: Generator,
    window: int,
    bits: int,
    x: Float[Tensor, "batch n"],
    *,
    int8: bool,
) -> Float[Tensor, "batch m"]:
    """x Z^T in float32; with `int8`, of quantized activations x^:

        sum over blocks of scale * sum over the block of (z - c) x^ + c * sum(x).

    c is the middle of z's range. The integer sums are exact, and the mean of z meets the exact sum of x
    instead of the rounded one; an all-plus generator has a mean of 3.5 standard deviations.
    """
    codes = unpack_codes(qweight, generator, window, bits)
    if not int8:
        return x @ codes.to(torch.float32).T
    quantized, scale = quantize_activations(x)
    middle = 255 * sum(generator.signs) // 2
    # Sums of 16 products of at most 1020 * 127 are integers that float32 holds exactly, in any order.
    blocks = (codes - middle).to(torch.float32).view(len(codes), -1, SIDE)
    sums = torch.einsum("mjk,bjk->bmj", blocks, quantized.view(len(x), -1, SIDE).to(torch.float32))
    return (sums * scale[:, None, :]).sum(-1) + middle * x.sum(-1, keepdim=True, dtype=torch.float64).to(
        torch.float32
    )


def unpack_transposed(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> Float[Tensor, "n m"]:
    """Z^T in float32."""
    return unpack_codes(qweight, generator, window, bits).T.to(torch.float32)
