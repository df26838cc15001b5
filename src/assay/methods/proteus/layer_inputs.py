"""What a layer is quantized with: its settings, its inputs' second moment, and the change of basis.

Layers that receive the same tensor share the second moment, its factors and the signs of the input channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.incoherence import TILE, Kind, Rotation, Transform, padded, signs, transform_for
from assay.methods.proteus.ldlq import Feedback, block_ldl, damped
from assay.methods.proteus.trellis import Trellis

if TYPE_CHECKING:
    from assay.methods.proteus.hessian import SecondMoment


@dataclass(frozen=True)
class LayerSettings:
    """How layers are quantized.

    Attributes:
        bits: bits a weight.
        window: bits of a trellis state.
        damp: share of the second moment's mean diagonal that is added to its diagonal.
        compensate: fit scales after encoding.
        correct_bias: also find what to add to the bias, so that the mean output stays the same.
        seed: of signs and samples.
        rht: the kind of orthogonal transform, or "auto".
        pool: the generators to choose from; those of `POOL_V1` when None.
    """

    bits: int = 2
    window: int = 12
    damp: float = 3e-2
    compensate: bool = True
    correct_bias: bool = False
    seed: int = 0
    rht: Literal["auto"] | Kind = "auto"
    pool: tuple[Generator, ...] | None = None

    @property
    def trellis(self) -> Trellis:
        """The trellis of a tile."""
        return Trellis(window=self.window, bits=self.bits, length=TILE * TILE)


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a layer, or of several that receive the same tensor, prepared for quantization.

    Attributes:
        hessian: the damped second moment in the original domain, float32.
        su: random signs of the input channels.
        transform: A_n.
        importance: the diagonal of the transformed second moment.
        feedback: its factors.
        flags: what a user should know.
        mean: E[x], where it is known.
    """

    hessian: Float[Tensor, "n n"]
    su: Float[Tensor, " n"]
    transform: Transform
    importance: Float[Tensor, " padded"]
    feedback: Feedback
    flags: tuple[str, ...]
    mean: Float[Tensor, " n"] | None = None


def prepare_inputs(
    hessian: Float[Tensor, "n n"] | SecondMoment, *, group: str, settings: LayerSettings, block: int = TILE
) -> LayerInputs:
    """Signs, transform and factors that all layers with the same inputs share.

    Args:
        hessian: E[x x^T], or a `SecondMoment`, whose warnings become flags.
        group: the name that stands for the layers that share these inputs; the signs depend on it.
        settings: `damp`, `rht` and `seed` are used.
        block: columns that will be rounded together; 16 for tiles.

    Raises:
        InputError: the second moment is not square or not finite.
    """
    flags: tuple[str, ...] = ()
    mean = None
    if not isinstance(hessian, Tensor):
        flags, mean, hessian = hessian.warnings(), hessian.mean.float(), hessian.hessian
    n = hessian.shape[0]
    if hessian.shape != (n, n):
        raise InputError(f"the second moment of {group} has shape {tuple(hessian.shape)}; it must be square")
    if not bool(torch.isfinite(hessian).all()):
        raise InputError(
            f"the second moment of the inputs of {group} is not finite: "
            "the model overflows on the calibration text; use dtype float32"
        )
    su = signs(n, seed=settings.seed, name=group, side="input").to(hessian.device)
    transform = transform_for(padded(n), settings.rht, seed=settings.seed)
    signed = (su[:, None] * hessian).mul_(su)
    # Channels of padding are always zero at run time: errors there cost nothing (damping aside).
    incoherent = torch.nn.functional.pad(signed, (0, padded(n) - n, 0, padded(n) - n))
    incoherent = transform.apply(transform.apply(incoherent).mT)
    feedback = block_ldl((incoherent + incoherent.mT) / 2, settings.damp, block=block)
    if feedback.lower is not None:
        feedback = replace(feedback, lower=feedback.lower.float())
    importance = incoherent.diagonal().clamp_min(0).float()
    if not bool((importance > 0).any()):
        importance = torch.ones_like(importance)
    # The error is also measured for zero second moments: then every channel counts the same.
    metric = hessian.float() if bool(hessian.any()) else torch.eye(n, device=hessian.device)
    return LayerInputs(
        hessian=damped(metric, feedback.damping),
        su=su,
        transform=transform,
        importance=importance,
        feedback=feedback,
        flags=flags + feedback.flags,
        mean=mean,
    )


def rotation_of(m: int, inputs: LayerInputs, *, name: str, settings: LayerSettings) -> Rotation:
    """The change of basis of a weight with m rows."""
    return Rotation(
        su=inputs.su,
        sv=signs(m, seed=settings.seed, name=name, side="output").to(inputs.su.device),
        inputs=inputs.transform,
        outputs=transform_for(padded(m), settings.rht, seed=settings.seed),
    )


def unit(incoherent: Float[Tensor, "mp np"]) -> tuple[Float[Tensor, "mp np"], float]:
    """Weights of unit mean square, and what they were divided by; zeros stay zeros."""
    rms = float(torch.linalg.vector_norm(incoherent, dtype=torch.float64)) / incoherent.numel() ** 0.5
    return incoherent / (rms or 1.0), rms
