"""Channel compensation: scales and an affine map that repair a quantized layer, its indices fixed.

Everything minimises the proxy error tr(R H R^T) of the residual R = W - Q, in closed form, one kind of
parameter at a time; no step can increase it. A step knows how much it gains from the products with H that it
needs anyway.

Source: the paper's abstract names channel compensation; the formulas are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SMALLEST_SCALE, LARGEST_SCALE = 0.5, 2.0
# Tikhonov regularisation of the input scales towards 1, relative to the mean of the system's diagonal.
INPUT_REGULARISATION = 1e-3
ROUNDS = 2
# A round that gains less than this, relatively, is the last.
SMALLEST_GAIN = 1e-4


class Step(NamedTuple):
    """Scales for the channels of one side, and by how much they lower tr(R H R^T)."""

    scales: Float[Tensor, " channels"]
    gain: float


@dataclass(frozen=True)
class Compensation:
    """What repairs a layer: its weight becomes diag(outputs) (alpha Z + beta 1) diag(inputs), in W's domain.

    Attributes:
        alpha: factor of the integer codes.
        beta: constant added to them.
        outputs: a factor for every output channel.
        inputs: a factor for every input channel.
        errors: relative proxy error at the start, after the affine map, and after every round of scales.
    """

    alpha: float
    beta: float
    outputs: Float[Tensor, " m"]
    inputs: Float[Tensor, " n"]
    errors: tuple[float, ...]


def proxy_error(
    weight: Float[Tensor, "m n"], quantized: Float[Tensor, "m n"], hessian: Float[Tensor, "n n"]
) -> float:
    """tr(R H R^T) / tr(W H W^T) with R = W - Q: 0 is exact, 1 is as bad as no weight at all.

    H is the second moment of the inputs, so this is the relative squared error of the layer's output. For a
    weight that gives no output it is 0 where the quantized one gives none either, and infinite elsewhere.
    """
    hessian = hessian.to(weight.dtype)
    residual = weight - quantized
    error = _inner(residual @ hessian, residual)
    reference = _inner(weight @ hessian, weight)
    if reference > 0:
        return max(error, 0.0) / reference
    return float("inf") if error > 0 else 0.0


def output_scales(
    residual: Float[Tensor, "m n"], quantized: Float[Tensor, "m n"], products: Float[Tensor, "m n"]
) -> Step:
    """The factor for every row of Q that minimises its proxy error, within [0.5, 2].

    d_i = (w_i H q_i^T) / (q_i H q_i^T) = 1 + (r_i H q_i^T) / (q_i H q_i^T): the exact minimiser. The error is
    a parabola in d_i, so clipping cannot make it larger than at 1.

    Args:
        residual: R = W - Q.
        quantized: Q.
        products: Q H.
    """
    slope = (products * residual).sum(1, dtype=torch.float64)
    curvature = (products * quantized).sum(1, dtype=torch.float64)
    change = torch.where(curvature > 0, slope / curvature, 0.0)
    change = change.clamp(SMALLEST_SCALE - 1, LARGEST_SCALE - 1)
    gain = float((2 * change * slope - change.square() * curvature).sum())
    return Step((1 + change).to(quantized.dtype), gain)


def input_scales(
    residual_products: Float[Tensor, "m n"], quantized: Float[Tensor, "m n"], hessian: Float[Tensor, "n n"]
) -> Step:
    """The factor for every column of Q that minimises the proxy error, drawn slightly towards 1.

    Solves ((Q^T Q) o H + lambda I) (e - 1) = diag(Q^T R H), with o the entrywise product. The error at e plus
    lambda |e - 1|^2 is least, so the error is at most that at 1.

    Args:
        residual_products: R H.
        quantized: Q.
        hessian: H.
    """
    none = Step(torch.ones_like(quantized[0]), 0.0)
    system = ((quantized.mT @ quantized) * hessian).double()
    regularisation = INPUT_REGULARISATION * float(system.diagonal().mean())
    if regularisation <= 0:
        return none
    slope = (residual_products * quantized).sum(0, dtype=torch.float64)
    system.diagonal().add_(regularisation)
    factor, failed = torch.linalg.cholesky_ex(system)
    if int(failed):
        return none
    change = torch.cholesky_solve(slope[:, None], factor)[:, 0]
    # With A the regularised system, A change = slope: the gain 2 slope'c - c'(A - lambda)c needs no product.
    gain = float(change @ slope + regularisation * change.square().sum())
    return Step((1 + change).to(quantized.dtype), gain)


def refit_affine(
    weight: Float[Tensor, "m n"],
    codes: Float[Tensor, "m n"],
    products: Float[Tensor, "m n"],
    constant: tuple[Float[Tensor, " m"], Float[Tensor, " n"]],
    hessian: Float[Tensor, "n n"],
) -> tuple[float, float] | None:
    """(alpha, beta) of the least proxy error of alpha Z + beta 1, or None when they are not determined.

    Args:
        weight: W.
        codes: what the integer codes Z decode to with alpha = 1 and beta = 0, in the domain of W.
        products: `codes` times H.
        constant: what a constant 1 decodes to: the outer product of two vectors.
        hessian: the second moment of the inputs.
    """
    rows, columns = constant
    columns_products = hessian @ columns
    mixed = float((rows @ (products @ columns)).double())
    normal = torch.tensor(
        [
            [_inner(products, codes), mixed],
            [mixed, _inner(rows, rows) * _inner(columns, columns_products)],
        ],
        dtype=torch.float64,
    )
    right = torch.tensor(
        [_inner(products, weight), float((rows @ (weight @ columns_products)).double())], dtype=torch.float64
    )
    # In units of the diagonal, the determinant says how different the two members are.
    scale = normal.diagonal().clamp_min(0).sqrt()
    if not bool((scale > 0).all()):
        return None
    correlation = normal / torch.outer(scale, scale)
    if float(torch.linalg.det(correlation)) < 1e-9:
        return None
    alpha, beta = (torch.linalg.solve(correlation, right / scale) / scale).tolist()
    return alpha, beta


def compensate(
    weight: Float[Tensor, "m n"],
    codes: Float[Tensor, "m n"],
    constant: tuple[Float[Tensor, " m"], Float[Tensor, " n"]],
    affine: tuple[float, float],
    hessian: Float[Tensor, "n n"],
    *,
    rounds: int = ROUNDS,
) -> Compensation:
    """Fit the affine map, then output and input scales in turn until a round gains less than 1e-4.

    Args:
        weight: W.
        codes: what the integer codes decode to with alpha = 1 and beta = 0, in the domain of W.
        constant: what a constant 1 decodes to: the outer product of two vectors.
        affine: alpha and beta that the codes were encoded with.
        hessian: the (damped) second moment of the inputs.
        rounds: of scales, at most.
    """
    hessian = hessian.to(weight.dtype)
    wanted = weight @ hessian
    reference = _inner(wanted, weight) or 1.0
    code_products = codes @ hessian
    constant_products = hessian @ constant[1]

    def decoded(alpha: float, beta: float) -> tuple[Tensor, Tensor, float]:
        quantized = alpha * codes + beta * torch.outer(*constant)
        products = alpha * code_products + beta * torch.outer(constant[0], constant_products)
        return quantized, products, _inner(wanted - products, weight - quantized) / reference

    quantized, products, error = decoded(*affine)
    errors = [error]
    refitted = refit_affine(weight, codes, code_products, constant, hessian)
    if refitted is not None:
        better = decoded(*refitted)
        if better[2] < error:
            affine, (quantized, products, error) = refitted, better
    errors.append(error)
    outputs, inputs = torch.ones_like(weight[:, 0]), torch.ones_like(weight[0])
    for number in range(rounds):
        if number:
            products = quantized @ hessian
        rows = output_scales(weight - quantized, quantized, products)
        quantized, products = quantized * rows.scales[:, None], products * rows.scales[:, None]
        columns = input_scales(wanted - products, quantized, hessian)
        quantized = quantized * columns.scales
        outputs, inputs = outputs * rows.scales, inputs * columns.scales
        gain = (rows.gain + columns.gain) / reference
        errors.append(errors[-1] - gain)
        if gain < SMALLEST_GAIN * errors[-2]:
            break
    return Compensation(*affine, outputs, inputs, tuple(errors))


def bias_correction(
    weight: Float[Tensor, "m n"], quantized: Float[Tensor, "m n"], mean: Float[Tensor, " n"]
) -> Float[Tensor, " m"]:
    """What to add to the bias so that the mean output is that of the original: (W - Q) E[x]."""
    return (weight - quantized) @ mean.to(weight.dtype)


def _inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum(dtype=torch.float64))
