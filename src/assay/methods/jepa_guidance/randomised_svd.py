"""The randomised-SVD surrogate of JEPA-SCORE and its gradient (paper, section 4).

The score of an image is the sum of the logarithms of the singular values of the encoder's Jacobian J (d x n)
there. The surrogate sums the k leading ones, of B = Q^T J instead of J: Q is an orthonormal basis of the
subspace that a randomised range finder with power iterations finds, held fixed in the gradient (at the
optimal Q the derivative through Q vanishes: the envelope theorem).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.jepa_guidance.jacobian import Encoder, JacobianProducts

# Smallest singular values that count: the released code's, of the surrogate and of the full score.
SURROGATE_FLOOR = 1e-8
SCORE_FLOOR = 1e-6

# The difference that checks a gradient moves the score by about so many nats, and the sample by at most this
# share of its length.
_SLOPE_CHANGE = 0.05
_SLOPE_SHARE = 0.01
_SLOPE_LEAST_CHANGE = 0.005


class Surrogate(NamedTuple):
    """The surrogate score of each sample, its gradient, and the subspace that it was taken in.

    Attributes:
        values: the score in nats; NaN where it could not be computed.
        gradients: its gradient at the samples; 0 where it could not be computed.
        basis: Q of each sample.
        usable: where value and gradient are finite.
        largest: the largest singular value, 0 where the encoder does not react at all.
    """

    values: Float[Tensor, " batch"]
    gradients: Float[Tensor, "batch ..."]
    basis: Float[Tensor, "batch d rank"]
    usable: Bool[Tensor, " batch"]
    largest: Float[Tensor, " batch"]


def random_directions(
    count: int, like: Float[Tensor, "batch ..."], generator: torch.Generator
) -> Float[Tensor, "count batch ..."]:
    """Gaussian directions of unit length, the same for all samples of a batch.

    A sample's result must depend neither on its batch mates nor on its place among them, so all samples
    share the directions of a step.
    """
    shape = like.shape[1:]
    directions = torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(like)
    norms = directions.flatten(1).norm(dim=1).view(-1, *[1] * len(shape))
    return (directions / norms).unsqueeze(1).expand(count, len(like), *shape)


def leading_subspace(
    products: JacobianProducts,
    power_iters: int,
    *,
    directions: Float[Tensor, "rank batch ..."] | None = None,
    basis: Float[Tensor, "batch d rank"] | None = None,
) -> Float[Tensor, "batch d rank"]:
    """An orthonormal basis of nearly the leading left singular subspace of each sample's Jacobian.

    Args:
        products: the Jacobians.
        power_iters: how often J J^T is applied; the basis is made orthonormal after each.
        directions: random directions in the input, to start from J times them.
        basis: a basis of an earlier call, to start from instead.
    """
    if basis is None:
        if directions is None:
            raise ValueError("leading_subspace needs directions or a basis to start from")
        basis = _orthonormal(products.jvp(directions))
    for _ in range(power_iters):
        pulled = products.vjp(basis.permute(2, 0, 1))
        basis = _orthonormal(products.jvp(pulled))
    return basis


def score_from_rows(
    rows: Float[Tensor, "rank batch ..."], k: int, floor: float
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Sum of the logarithms of the k leading singular values of B, the largest one, and where it is finite.

    The singular values are the square roots of the eigenvalues of B B^T in float64: exact for rows that
    come in float32, and the derivative stays finite where two of them are equal.
    """
    matrix = rows.flatten(2).transpose(0, 1).double()
    finite = torch.isfinite(matrix).flatten(1).all(dim=1)
    matrix = torch.where(finite[:, None, None], matrix, 0.0)
    eigenvalues = torch.linalg.eigvalsh(matrix @ matrix.mT).flip(-1)
    leading = eigenvalues[:, :k].clamp_min(floor**2)
    values = 0.5 * leading.log().sum(dim=1)
    return values, eigenvalues[:, 0].detach().clamp_min(0).sqrt(), finite


def surrogate_with_gradient(
    encoder: Encoder,
    x: Float[Tensor, "batch ..."],
    *,
    k: int,
    oversample: int,
    power_iters: int,
    generator: torch.Generator,
    start: Float[Tensor, "batch d rank"] | None = None,
    differentiate: bool = True,
) -> Surrogate:
    """The surrogate and its gradient for each sample, all directions in one pass.

    Use it inside `differentiable_encoder()`.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the samples.
        k: how many singular values are summed.
        oversample: additional directions.
        power_iters: power iterations.
        generator: of the random directions.
        start: a basis to start from instead of random directions.
        differentiate: False leaves the gradient 0, and needs no second derivative.

    Raises:
        InputError: k + oversample is more than d or n, or the encoder is detached or cannot be
            differentiated twice.
    """
    rank = k + oversample
    products = JacobianProducts(encoder, x, copies=rank)
    check_rank(k, oversample, products.width, x[0].numel())
    directions = None if start is not None else random_directions(rank, x, generator)
    basis = leading_subspace(products, power_iters, directions=directions, basis=start).detach()
    return _in_basis(products, x, basis, k, SURROGATE_FLOOR, differentiate)


def score_with_gradient(encoder: Encoder, x: Float[Tensor, "batch ..."], width: int) -> Surrogate:
    """The full score and its gradient for each sample, through the whole Jacobian.

    Use it inside `differentiable_encoder()`, for small encoders: it keeps a graph for each of the d rows.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the samples.
        width: d.

    Raises:
        InputError: the encoder is detached or cannot be differentiated twice.
    """
    products = JacobianProducts(encoder, x, copies=width)
    basis = torch.eye(width, dtype=x.dtype, device=x.device).expand(len(x), width, width)
    return _in_basis(products, x, basis, min(width, x[0].numel()), SCORE_FLOOR)


def _in_basis(
    products: JacobianProducts,
    x: Tensor,
    basis: Float[Tensor, "batch d rank"],
    k: int,
    floor: float,
    differentiate: bool = True,
) -> Surrogate:
    """The score of Q^T J and its gradient, Q held fixed."""
    u = basis.permute(2, 0, 1)
    rows = products.rows(u) if differentiate else products.vjp(u)
    values, largest, finite = score_from_rows(rows, k, floor)
    gradients = products.gradient(values.sum())
    usable = finite & torch.isfinite(values) & torch.isfinite(gradients).flatten(1).all(dim=1)
    wide = usable.view(-1, *[1] * (x.dim() - 1))
    return Surrogate(
        values=torch.where(usable, values.detach(), torch.nan).to(x.dtype),
        gradients=torch.where(wide, gradients, 0.0),
        basis=basis,
        usable=usable,
        largest=largest.to(x.dtype),
    )


def slope_along_gradient(
    encoder: Encoder,
    x: Float[Tensor, "one ..."],
    found: Surrogate,
    *,
    k: int,
    floor: float,
) -> tuple[float, float]:
    """The slope of one sample's score along its gradient, by a difference, and what the gradient says of it.

    The two differ where an operation of the encoder hides a derivative from autograd (a kernel that is
    differentiable once, a detached factor). A slope too flat to be measured above rounding is taken as said.
    Use it inside `differentiable_encoder()`.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the sample.
        found: its score and gradient, as they were computed.
        k: how many singular values were summed.
        floor: the smallest one that counts.
    """
    said = float(found.gradients.norm())
    direction = found.gradients / said
    length = min(_SLOPE_CHANGE / said, _SLOPE_SHARE * float(x.norm()))
    if 2 * length * said < _SLOPE_LEAST_CHANGE:
        return said, said
    points = torch.cat([x + length * direction, x - length * direction])
    rank = found.basis.shape[2]
    basis = found.basis.expand(2, -1, rank)
    rows = JacobianProducts(encoder, points, copies=rank).vjp(basis.permute(2, 0, 1))
    values, _, _ = score_from_rows(rows, k, floor)
    return float(values[0] - values[1]) / (2 * length), said


def check_rank(k: int, oversample: int, width: int, pixels: int) -> None:
    """Refuse a rank that the Jacobian cannot have.

    Raises:
        InputError: k + oversample is more than the embedding's width or the number of pixels.
    """
    if k + oversample > min(width, pixels):
        raise InputError(
            f"k + oversample is {k + oversample}, more than the {min(width, pixels)} singular values of a "
            f"Jacobian of {width} outputs and {pixels} inputs: lower k or oversample"
        )


def surrogate_reference(
    encoder: Encoder,
    x: Float[Tensor, "batch ..."],
    *,
    k: int,
    power_iters: int,
    directions: Float[Tensor, "rank batch ..."],
    difference: float | None = None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch ..."]]:
    """The surrogate and its gradient, one direction after the other: what the fast path is compared with.

    Args:
        encoder: maps each sample of the batch on its own to d numbers.
        x: the samples.
        k: how many singular values are summed.
        power_iters: power iterations.
        directions: random directions.
        difference: step of the finite difference that gives J v, 1e-4 in the released code; None: exact
            forward mode.
    """

    def push(v: Tensor) -> Tensor:
        if difference is None:
            return torch.func.jvp(encoder, (x,), (v.contiguous(),))[1]
        return (encoder(x + difference * v) - encoder(x)) / difference

    def pull(u: Tensor, create_graph: bool = False) -> Tensor:
        return torch.autograd.grad(encoder(point), point, u, create_graph=create_graph)[0]

    point = x.detach().clone().requires_grad_()
    with torch.no_grad():
        image = torch.stack([push(v) for v in directions])
    for _ in range(power_iters):
        pulled = [pull(u) for u in _orthonormal(image).permute(2, 0, 1)]
        with torch.no_grad():
            image = torch.stack([push(v) for v in pulled])
    basis = _orthonormal(image).permute(2, 0, 1)
    rows = torch.stack([pull(u, create_graph=True) for u in basis])
    singular = torch.linalg.svdvals(rows.flatten(2).transpose(0, 1))
    values = singular[:, :k].clamp_min(SURROGATE_FLOOR).log().sum(dim=1)
    (gradient,) = torch.autograd.grad(values.sum(), point)
    return values.detach(), gradient


def with_redraws(
    attempt: Callable[[Tensor, int], Surrogate], size: int, redraws: int
) -> tuple[Surrogate, int]:
    """Repeat an attempt for the samples that it failed for, with other random directions.

    Args:
        attempt: (indices of samples, number of the attempt) -> their surrogate.
        size: number of samples.
        redraws: how many further attempts are made.

    Returns:
        The surrogate of all samples, and how many sample-attempts were repeated.
    """
    result = attempt(torch.arange(size), 0)
    repeated = 0
    for number in range(1, redraws + 1):
        failed = (~result.usable).nonzero().flatten()
        if len(failed) == 0:
            break
        repeated += len(failed)
        again = attempt(failed, number)
        result = Surrogate(*(_replaced(old, failed, new) for old, new in zip(result, again, strict=True)))
    return result, repeated


def _replaced(old: Tensor, index: Tensor, new: Tensor) -> Tensor:
    changed = old.clone()
    changed[index.to(old.device)] = new
    return changed


def _orthonormal(columns: Float[Tensor, "rank batch d"]) -> Float[Tensor, "batch d rank"]:
    # A row of NaN would make LAPACK fail for the whole batch.
    matrix = columns.permute(1, 2, 0)
    finite = torch.isfinite(matrix).flatten(1).all(dim=1)[:, None, None]
    basis = torch.linalg.qr(torch.where(finite, matrix, 0.0)).Q
    return torch.where(finite, basis, torch.nan)
