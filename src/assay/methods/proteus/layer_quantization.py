"""One linear layer from float weights to packed trellis codes.

Signs and orthogonal transforms make the weights look Gaussian, a code is chosen and scaled for the layer, the
tiles are encoded with linear feedback, and scales and an affine map repair what can be repaired without
touching the packed bits. The layer then computes

    y = sv * A_m^T (alpha Z xh + beta sum(xh)),    xh = A_n (su * x),

with the integer codes Z; x is padded with zeros to a multiple of 16 before A_n, and y cropped after A_m^T.

Source: the pipeline of QTIP (Tseng et al. 2024); code choice and compensation after the paper's abstract.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.codes import mulbal, unit_affine
from assay.methods.proteus.compensation import bias_correction, compensate, proxy_error
from assay.methods.proteus.incoherence import Rotation, Transform, padded
from assay.methods.proteus.instantiate import Encode, instantiate, sample_tiles
from assay.methods.proteus.layer_inputs import LayerInputs, LayerSettings, prepare_inputs, rotation_of, unit
from assay.methods.proteus.ldlq import Feedback, from_sequences, ldlq, to_sequences
from assay.methods.proteus.pool import pool
from assay.methods.proteus.trellis import Trellis, pack
from assay.methods.proteus.viterbi import encode_tiles

if TYPE_CHECKING:
    from assay.methods.proteus.hessian import SecondMoment

# The encoder as a parameter: (x, values, trellis, threads=...) -> states, e.g. as tasks on a cluster.
Encoder = Callable[..., Int[Tensor, "n steps"]]

# Smaller layers are not worth their scales.
SMALLEST = 32
_HALF_RANGE = (2.0**-14, 65504.0)


@dataclass(frozen=True)
class QuantizedLayer:
    """What a checkpoint keeps of a linear layer.

    Attributes:
        qweight: the packed tiles, mt = ceil(m / 16) by nt = ceil(n / 16).
        record: the generator, as `Generator.record` writes it.
        affine: alpha and beta, float32.
        su: a factor for every input channel, float16 where its values fit, else float32.
        sv: the same for the output channels.
        input_transform: A_n; its `matrix` belongs into the checkpoint where it has one.
        output_transform: A_m, likewise.
        shape: (m, n) of the original weight.
        bias_correction: what to add to the layer's bias, where it was asked for; not one of the layer's bits.
    """

    qweight: UInt8[Tensor, "mt nt bytes"]
    record: Int[Tensor, " 8"]
    affine: Float[Tensor, " 2"]
    su: Float[Tensor, " n"]
    sv: Float[Tensor, " m"]
    input_transform: Transform
    output_transform: Transform
    shape: tuple[int, int]
    bias_correction: Float[Tensor, " m"] | None = None

    @property
    def rotation(self) -> Rotation:
        """The change of basis, with the scales in it."""
        return Rotation(self.su.float(), self.sv.float(), self.input_transform, self.output_transform)

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros that make the weight a whole number of tiles."""
        return padded(self.shape[0]) - self.shape[0], padded(self.shape[1]) - self.shape[1]

    @property
    def bits_per_weight(self) -> float:
        """All the bits that the layer stores (without a bias), by weights of the original."""
        tensors = [self.qweight, self.record, self.affine, self.su, self.sv]
        tensors += [t.matrix for t in (self.input_transform, self.output_transform) if t.matrix is not None]
        return sum(8 * t.numel() * t.element_size() for t in tensors) / (self.shape[0] * self.shape[1])


@dataclass(frozen=True)
class LayerReport:
    """How the quantization of one layer went.

    Attributes:
        name: the module's path.
        shape: (m, n) of the weight.
        proxy_error: tr(E H E^T) / tr(W H W^T) with the damped second moment H, before compensation.
        proxy_error_compensated: the same with the scales and affine that are stored.
        candidate: the chosen generator's index in the pool.
        scale: by what its unit-variance values were multiplied for encoding.
        alpha: factor of the integer codes.
        beta: constant added to them.
        bits_per_weight: all stored bits by the number of weights.
        seconds: how long it took.
        flags: what a user should know, one sentence each.
    """

    name: str
    shape: tuple[int, int]
    proxy_error: float
    proxy_error_compensated: float
    candidate: int
    scale: float
    alpha: float
    beta: float
    bits_per_weight: float
    seconds: float
    flags: tuple[str, ...]


def quantize_layer(
    weight: Float[Tensor, "m n"],
    hessian: Float[Tensor, "n n"] | SecondMoment | LayerInputs,
    *,
    name: str,
    group: str | None = None,
    settings: LayerSettings | None = None,
    threads: int | None = None,
    encode: Encoder = encode_tiles,
) -> tuple[QuantizedLayer, LayerReport]:
    """Quantize the weight of one linear layer.

    The result depends on nothing but the arguments: not on the order of layers, nor on `threads`.

    Args:
        weight: (out, in).
        hessian: the second moment of the layer's inputs, or what `prepare_inputs` made of it.
        name: the module's path; output signs and samples depend on it.
        group: the name that stands for the layers that share these inputs; `name` when None. It must be the
            one that prepared inputs were made with.
        settings: bits, window, and so on.
        threads: of the encoder; None takes torch's number.
        encode: the encoder, with the signature of `encode_tiles`.

    Raises:
        InputError: the weight is not a matrix of at least 32 x 32 finite numbers, the second moment does
            not fit it, or it comes without the mean that a bias correction needs.
    """
    started = time.perf_counter()
    settings = settings or LayerSettings()
    check_weight(name, weight)
    m, n = weight.shape
    if not isinstance(hessian, LayerInputs):
        hessian = prepare_inputs(hessian, group=group or name, settings=settings)
    inputs = hessian
    if settings.correct_bias and inputs.mean is None:
        raise InputError(f"the bias of {name} cannot be corrected without E[x]: pass a SecondMoment")
    if len(inputs.su) != n:
        raise InputError(f"the second moment for {name} has {len(inputs.su)} channels, its weight {n}")
    weight = weight.detach().to(inputs.su.device, torch.float32)
    rotation = rotation_of(m, inputs, name=name, settings=settings)
    incoherent, rms = unit(rotation.apply(weight))
    sample = sample_tiles(incoherent, inputs.importance, seed=settings.seed, name=name)
    candidates = settings.pool or pool(settings.window, settings.bits)
    encode = partial(encode, threads=threads)
    choice = instantiate(sample, candidates, settings.trellis, encode)
    generator = candidates[choice.candidate]
    values = choice.scale * mulbal(generator, settings.window).values
    states = encode_with_feedback(incoherent, inputs.feedback, values, settings.trellis, encode)
    packed = pack(states.flatten(0, 1), settings.trellis).reshape(*states.shape[:2], -1)
    codes = from_sequences(generator.raw(states)).to(incoherent)
    alpha, beta = unit_affine(generator, settings.window)
    scale = rms * choice.scale
    layer = QuantizedLayer(
        qweight=packed,
        record=generator.record(candidate=choice.candidate),
        affine=torch.tensor([scale * alpha, scale * beta]),
        su=_storable(rotation.su),
        sv=_storable(rotation.sv),
        input_transform=rotation.inputs,
        output_transform=rotation.outputs,
        shape=(m, n),
    )
    error = final = proxy_error(weight, _decode(codes, layer), inputs.hessian)
    if settings.compensate:
        fitted = _compensated(weight, codes, layer, inputs.hessian)
        after = proxy_error(weight, _decode(codes, fitted), inputs.hessian)
        # Where there is nothing to repair, rounding the scales to float16 could cost more than they gain.
        if after < error:
            layer, final = fitted, after
    if settings.correct_bias and inputs.mean is not None:
        correction = bias_correction(weight, _decode(codes, layer), inputs.mean)
        layer = replace(layer, bias_correction=correction.cpu())
    report = LayerReport(
        name=name,
        shape=(m, n),
        proxy_error=error,
        proxy_error_compensated=final,
        candidate=choice.candidate,
        scale=choice.scale,
        alpha=float(layer.affine[0]),
        beta=float(layer.affine[1]),
        bits_per_weight=layer.bits_per_weight,
        seconds=time.perf_counter() - started,
        flags=inputs.flags,
    )
    return layer, report


def encode_with_feedback(
    incoherent: Float[Tensor, "mp np"],
    feedback: Feedback,
    values: Float[Tensor, " states *V"],
    trellis: Trellis,
    encode: Encode,
) -> Int[Tensor, "mt nt steps"]:
    """The states of all tiles, encoded a block column after the other with linear feedback.

    Args:
        incoherent: weights, scaled like the code.
        feedback: of their inputs, for blocks of 16 columns.
        values: what the states decode to.
        trellis: that of the code.
        encode: the encoder.
    """
    columns: dict[int, Tensor] = {}

    def quantize_block(index: int, target: Float[Tensor, "mp 16"]) -> Float[Tensor, "mp 16"]:
        states = encode(to_sequences(target)[:, 0], values, trellis).cpu()
        columns[index] = states
        return from_sequences(values[states].flatten(1)[:, None]).to(target.device)

    ldlq(incoherent, feedback, quantize_block)
    return torch.stack([columns[index] for index in range(len(columns))], dim=1)


def dequantize(layer: QuantizedLayer, window: int, bits: int) -> Float[Tensor, "m n"]:
    """The float32 weight that a quantized layer stands for."""
    from assay.methods.proteus.kernels import unpack_codes

    return _decode(unpack_codes(layer.qweight, layer.record, window, bits).float(), layer)


def check_weight(name: str, weight: Tensor) -> None:
    """Refuse a weight that cannot be quantized, before any work is done.

    Raises:
        InputError: it is not a matrix, is smaller than 32 x 32, or has entries that are not finite.
    """
    if weight.ndim != 2:
        raise InputError(
            f"the weight of {name} has shape {tuple(weight.shape)}; only matrices can be quantized"
        )
    if min(weight.shape) < SMALLEST:
        raise InputError(
            f"the weight of {name} is {weight.shape[0]} x {weight.shape[1]}; layers smaller than "
            f"{SMALLEST} x {SMALLEST} are not worth quantizing: leave it out"
        )
    wrong = int((~torch.isfinite(weight)).sum())
    if wrong:
        raise InputError(f"the weight of {name} has {wrong} NaN or infinite entries; the model is damaged")


def _compensated(
    weight: Float[Tensor, "m n"],
    raw: Float[Tensor, "mp np"],
    layer: QuantizedLayer,
    hessian: Float[Tensor, "n n"],
) -> QuantizedLayer:
    """The layer with affine and channel scales fitted; `qweight` is not touched."""
    rotation = layer.rotation.to(weight.device)
    alpha, beta = layer.affine.tolist()
    fitted = compensate(weight, rotation.restore(raw), rotation.restore_constant(), (alpha, beta), hessian)
    return replace(
        layer,
        affine=torch.tensor([fitted.alpha, fitted.beta]),
        su=_storable(rotation.su * fitted.inputs),
        sv=_storable(rotation.sv * fitted.outputs),
    )


def _decode(codes: Float[Tensor, "mp np"], layer: QuantizedLayer) -> Float[Tensor, "m n"]:
    alpha, beta = layer.affine.tolist()
    return layer.rotation.to(codes.device).restore(alpha * codes + beta)


def _storable(scales: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """On the CPU, in float16 where all values are within its normal range, else in float32."""
    magnitude = scales.abs()
    low, high = _HALF_RANGE
    fits = bool(((magnitude >= low) & (magnitude <= high)).all())
    return scales.cpu().half() if fits else scales.cpu().float()
