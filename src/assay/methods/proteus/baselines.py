"""What proteus is compared with: rounding to a grid, GPTQ, and LDLQ with other codes.

Every baseline takes the same weight and the same second moment, and says how many bits a weight it stores,
scales and tables included.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.codes import HYB_TABLE_BITS, Code, lloyd_max
from assay.methods.proteus.incoherence import TILE, Rotation
from assay.methods.proteus.instantiate import choose, sample_tiles
from assay.methods.proteus.layer_inputs import LayerInputs, LayerSettings, prepare_inputs, rotation_of, unit
from assay.methods.proteus.layer_quantization import Encoder, check_weight, encode_with_feedback
from assay.methods.proteus.ldlq import DOUBLINGS, damped, from_sequences, ldlq
from assay.methods.proteus.trellis import Trellis
from assay.methods.proteus.viterbi import encode_tiles

if TYPE_CHECKING:
    from assay.methods.proteus.hessian import SecondMoment

# A group of a grid stores its smallest level and its step in half precision.
_GRID_BITS = 32
# By how much the range of a group is narrowed while its squared error is searched for a minimum.
_NARROWED = tuple(1 - 0.01 * i for i in range(80))
_COLUMNS_AT_ONCE = 128


class Baseline(NamedTuple):
    """A quantized weight, decoded, and what it costs.

    Attributes:
        weight: float32.
        bits_per_weight: all stored bits by the number of weights.
    """

    weight: Float[Tensor, "m n"]
    bits_per_weight: float


class Grid(NamedTuple):
    """Evenly spaced levels for every row: low, low + step, ..., as half precision stores them."""

    low: Float[Tensor, " m"]
    step: Float[Tensor, " m"]

    def round(self, weights: Float[Tensor, "m k"], bits: int) -> Float[Tensor, "m k"]:
        """The nearest level of every weight."""
        low, step = self.low[:, None], self.step[:, None]
        return low + step * ((weights - low) / step).round().clamp(0, 2**bits - 1)


def grid_of(weights: Float[Tensor, "m k"], bits: int) -> Grid:
    """The asymmetric grid of every row: its range, narrowed to the least squared error."""
    low, high = weights.amin(1), weights.amax(1)
    best = torch.full_like(low, torch.inf)
    chosen = _half_grid(low, high, bits)
    for factor in _NARROWED:
        grid = _half_grid(factor * low, factor * high, bits)
        error = (grid.round(weights, bits) - weights).square().sum(1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = Grid(*(torch.where(better, new, old) for new, old in zip(grid, chosen, strict=True)))
    return chosen


def rtn(weight: Float[Tensor, "m n"], *, bits: int = 2, group: int = 64) -> Baseline:
    """Round to nearest, on an asymmetric grid for every `group` weights of a row.

    Raises:
        InputError: the weight is not a matrix of finite numbers, or `bits` or `group` is not positive.
    """
    weight = _checked(weight, bits, group)
    parts = [grid_of(part, bits).round(part, bits) for part in weight.split(group, dim=1)]
    return Baseline(torch.cat(parts, dim=1), _grid_bits(weight, bits, len(parts)))


def gptq(
    weight: Float[Tensor, "m n"],
    hessian: Float[Tensor, "n n"] | SecondMoment,
    *,
    bits: int = 2,
    group: int = 64,
    damp: float = 3e-2,
) -> Baseline:
    """GPTQ: round a column after the other, and let the later ones make up for the error.

    The grid of a group is fitted to its weights as they are when the group is reached. Columns are in their
    own order, without sorting by activation.

    Args:
        weight: (out, in).
        hessian: second moment of the inputs.
        bits: bits of a grid.
        group: weights of a row that share a grid.
        damp: share of the mean diagonal that is added to the diagonal; doubled until the inverse exists.

    Raises:
        InputError: the weight is not a matrix of finite numbers, the second moment does not fit it, or `bits`
            or `group` is not positive.

    Source: Frantar et al. (2023), algorithm 1.
    """
    weight = _checked(weight, bits, group).clone()
    second = (hessian if isinstance(hessian, Tensor) else hessian.hessian).to(weight.device).double()
    n = weight.shape[1]
    if second.shape != (n, n) or not bool(torch.isfinite(second).all()):
        raise InputError(f"GPTQ needs a finite second moment of {n} channels, not {tuple(second.shape)}")
    # An input that is always zero says nothing about its weights.
    dead = second.diagonal() <= 0
    second = second.clone()
    second.diagonal()[dead] = 1
    weight[:, dead] = 0
    inverse = _inverse_factor(second, damp).to(weight.dtype)
    rounded = torch.empty_like(weight)
    grid = grid_of(weight[:, :group], bits)
    # Whole groups, so that the weights of a group are up to date when its grid is fitted.
    at_once = group * max(1, _COLUMNS_AT_ONCE // group)
    for start in range(0, n, at_once):
        end = min(start + at_once, n)
        errors = torch.empty_like(weight[:, start:end])
        for column in range(start, end):
            if column % group == 0:
                grid = grid_of(weight[:, column : column + group], bits)
            rounded[:, column] = grid.round(weight[:, column, None], bits)[:, 0]
            error = (weight[:, column] - rounded[:, column]) / inverse[column, column]
            weight[:, column:end] -= error[:, None] * inverse[column, column:end]
            errors[:, column - start] = error
        weight[:, end:] -= errors @ inverse[start:end, end:]
    return Baseline(rounded, _grid_bits(weight, bits, -(-n // group)))


def ldlq_scalar(
    weight: Float[Tensor, "m n"],
    hessian: Float[Tensor, "n n"] | SecondMoment | LayerInputs,
    *,
    name: str,
    group: str | None = None,
    settings: LayerSettings | None = None,
) -> Baseline:
    """Incoherence processing and LDLQ, with the optimal scalar quantizer of a Gaussian (QuIP).

    Feedback is column by column: a scalar quantizer need not wait for a block.

    Args:
        weight: (out, in).
        hessian: second moment of the inputs, or `prepare_inputs(..., block=1)` of it.
        name: the module's path.
        group: the name that stands for the layers that share these inputs.
        settings: of the layer; `window`, `pool` and `compensate` are not used.

    Raises:
        InputError: the weight or the second moment cannot be used, as in `quantize_layer`.

    Source: Chee et al. (2023), with the scale searched as for the other codes.
    """
    settings = settings or LayerSettings()
    weight, inputs = _prepared(weight, hessian, name, group, settings, block=1)
    rotation = rotation_of(len(weight), inputs, name=name, settings=settings)
    incoherent, rms = unit(rotation.apply(weight))
    levels = lloyd_max(settings.bits).float().to(weight.device)

    def nearest(x: Tensor, values: Tensor, trellis: Trellis) -> Int[Tensor, "n T"]:
        return torch.bucketize(x, (values[1:] + values[:-1]) / 2)

    sample = sample_tiles(incoherent, inputs.importance, seed=settings.seed, name=name)
    scale = choose(sample, [levels], settings.trellis, nearest)[0].scale
    values = scale * levels

    def quantize_block(index: int, target: Float[Tensor, "mp 1"]) -> Float[Tensor, "mp 1"]:
        return values[nearest(target, values, settings.trellis)]

    decoded = rotation.restore(rms * ldlq(incoherent, inputs.feedback, quantize_block))
    return Baseline(decoded, _code_bits(rotation, settings.bits))


def ldlq_code(
    weight: Float[Tensor, "m n"],
    hessian: Float[Tensor, "n n"] | SecondMoment | LayerInputs,
    code: Code,
    *,
    name: str,
    group: str | None = None,
    settings: LayerSettings | None = None,
    threads: int | None = None,
    encode: Encoder = encode_tiles,
) -> Baseline:
    """Incoherence processing and LDLQ with another trellis code: what QTIP does before fine-tuning.

    The same transforms, signs, sampled tiles, scale search and encoder as `quantize_layer`, without choice of
    a generator and without compensation.

    Args:
        weight: (out, in).
        hessian: second moment of the inputs, or `prepare_inputs` of it.
        code: any code, also one with pairs of values.
        name: the module's path.
        group: the name that stands for the layers that share these inputs.
        settings: of the layer; the window is the code's, and `pool` and `compensate` are not used.
        threads, encode: the encoder.

    Raises:
        InputError: the weight or the second moment cannot be used, as in `quantize_layer`.
    """
    settings = replace(settings or LayerSettings(), window=code.window)
    weight, inputs = _prepared(weight, hessian, name, group, settings, block=TILE)
    rotation = rotation_of(len(weight), inputs, name=name, settings=settings)
    incoherent, rms = unit(rotation.apply(weight))
    trellis = code.trellis(settings.bits)
    sample = sample_tiles(incoherent, inputs.importance, seed=settings.seed, name=name)

    encode = partial(encode, threads=threads)
    values = choose(sample, [code.values], trellis, encode)[0].scale * code.values
    states = encode_with_feedback(incoherent, inputs.feedback, values, trellis, encode)
    decoded = from_sequences(values[states].flatten(2)).to(weight.device)
    return Baseline(rotation.restore(rms * decoded), _code_bits(rotation, settings.bits, table_bits(code)))


def table_bits(code: Code) -> int:
    """Bits of the table that a decoder of this code reads, in half precision; 0 for a computed code."""
    if code.name == "hyb":
        return 2 * 16 << HYB_TABLE_BITS
    return 16 * code.values.numel() if code.name == "gaussian" else 0


def _checked(weight: Float[Tensor, "m n"], bits: int, group: int) -> Float[Tensor, "m n"]:
    if bits < 1 or group < 1:
        raise InputError(f"bits {bits} and group {group} must be at least 1")
    check_weight("the layer", weight)
    return weight.detach().float()


def _half_grid(low: Float[Tensor, " m"], high: Float[Tensor, " m"], bits: int) -> Grid:
    """The grid from low to high, with its two numbers rounded to half precision."""
    step = ((high - low) / (2**bits - 1)).half().float()
    # A row of equal weights has no range: any positive step does.
    return Grid(low.half().float(), torch.where(step > 0, step, 1.0))


def _inverse_factor(hessian: Float[Tensor, "n n"], damp: float) -> Float[Tensor, "n n"]:
    """The upper Cholesky factor of the inverse of a damped second moment."""
    for doubling in range(DOUBLINGS + 1):
        factor, failed = torch.linalg.cholesky_ex(damped(hessian, damp * 2**doubling))
        if int(failed):
            continue
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
        if not int(failed) and bool(torch.isfinite(upper).all()):
            return upper
    raise InputError(
        f"the second moment is not positive definite, even with damping {damp * 2**DOUBLINGS:g}: "
        "measure it on more text"
    )


def _prepared(
    weight: Float[Tensor, "m n"],
    hessian: Float[Tensor, "n n"] | SecondMoment | LayerInputs,
    name: str,
    group: str | None,
    settings: LayerSettings,
    *,
    block: int,
) -> tuple[Float[Tensor, "m n"], LayerInputs]:
    check_weight(name, weight)
    if not isinstance(hessian, LayerInputs):
        hessian = prepare_inputs(hessian, group=group or name, settings=settings, block=block)
    if hessian.feedback.block != block or len(hessian.su) != weight.shape[1]:
        raise InputError(
            f"the inputs prepared for {name} are for {len(hessian.su)} channels and blocks of "
            f"{hessian.feedback.block}; {weight.shape[1]} channels and blocks of {block} are needed"
        )
    return weight.detach().to(hessian.su.device, torch.float32), hessian


def _grid_bits(weight: Float[Tensor, "m n"], bits: int, groups: int) -> float:
    return bits + _GRID_BITS * groups / weight.shape[1]


def _code_bits(rotation: Rotation, bits: int, table: int = 0) -> float:
    """Padded codes, signs in half precision like our channel scales, one float32 scale, and a table."""
    m, n = len(rotation.sv), len(rotation.su)
    stored = bits * rotation.outputs.size * rotation.inputs.size + 16 * (m + n) + 32 + table
    stored += sum(32 * t.matrix.numel() for t in (rotation.inputs, rotation.outputs) if t.matrix is not None)
    return stored / (m * n)
