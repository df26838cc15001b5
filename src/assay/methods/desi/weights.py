"""The weights that Fréchet regression gives to the training points.

A regression estimate at a target point is the weighted Fréchet mean of the training responses. Global weights
reproduce linear regression, local-linear weights reproduce local-linear smoothing (Petersen and Müller 2019);
both sum to one and may be negative.

Local-linear weights need at least two effective neighbours. Where the kernel leaves fewer, the weights fall
back to the kernel's own (a local constant), and where the kernel leaves nothing, to the nearest neighbour;
both are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.errors import InputError

Kernel = Literal["gauss", "rect", "epan", "quar", "gausvar"]

# With k_i the kernel values and u_i the distances in bandwidths, the local-linear weights divide by
# sum_ij k_i k_j (u_i - u_j)^2 / 2. Below this value there is no slope to speak of.
SLOPE_EVIDENCE = 1e-4
# Below this sum of kernel values the target has no neighbour at all.
KERNEL_MASS = 1e-20


def _gauss(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u)


def _rect(u: Tensor) -> Tensor:
    return (u.abs() <= 1).to(u.dtype)


def _epan(u: Tensor) -> Tensor:
    return (1 - u * u).clamp_min(0)


def _quar(u: Tensor) -> Tensor:
    return (1 - u * u).clamp_min(0) ** 2


def _gausvar(u: Tensor) -> Tensor:
    # The variance-reducing Gaussian kernel is of higher order: it is negative beyond sqrt(5) bandwidths.
    return torch.exp(-0.5 * u * u) * (1.25 - 0.25 * u * u)


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "gauss": _gauss,
    "rect": _rect,
    "epan": _epan,
    "quar": _quar,
    "gausvar": _gausvar,
}


class LocalWeights(NamedTuple):
    """Weights with the rows that could not be local-linear.

    Attributes:
        weights: every row sums to one.
        kernel_rows: True where a row is a local constant, for want of a slope.
        nearest_rows: True where a row is its nearest neighbour, for want of any neighbour within the kernel.
    """

    weights: Float[Tensor, "m n"]
    kernel_rows: Bool[Tensor, " m"]
    nearest_rows: Bool[Tensor, " m"]


def local_linear_weights(
    z_in: Float[Tensor, " n"],
    z_out: Float[Tensor, " m"],
    bandwidth: Float[Tensor, ""] | float,
    *,
    kernel: Kernel = "gauss",
    excluded: Int[Tensor, " m"] | None = None,
    counts: Float[Tensor, " n"] | None = None,
) -> LocalWeights:
    """Local-linear weights on a scalar index, differentiable in the index and in the bandwidth.

    With u_ij = (z_in_j - z_out_i) / h, k_ij = K(u_ij), and mean and variance of u under k, a row is
    `k_j / sum k * (1 - mean * (u_j - mean) / variance)`: the centred form of k_j (mu_2 - mu_1 d_j), which
    does not cancel when the kernel's mass lies on one side of the target.

    Args:
        z_in: the index of the training points.
        z_out: the index of the targets.
        bandwidth: the kernel's scale, positive, in units of the index.
        kernel: the kernel's name.
        excluded: for every target the training point that it must not see; `arange(n)` leaves one out.
        counts: how often every training point counts (bootstrap); once each by default.

    Raises:
        InputError: the kernel is unknown.

    Source: Petersen and Müller (2019), section 3 (local Fréchet regression).
    """
    function = kernel_function(kernel)
    U = (z_in[None, :] - z_out[:, None]) / bandwidth
    K = function(U)
    if counts is not None:
        K = K * counts[None, :]
    if excluded is not None:
        K = K.scatter(1, excluded[:, None], 0.0)
    mass = K.sum(1, keepdim=True)
    empty = mass <= KERNEL_MASS
    P = K / torch.where(empty, 1.0, mass)
    mean = (P * U).sum(1, keepdim=True)
    centred = U - mean
    PC = P * centred
    variance = (PC * centred).sum(1, keepdim=True)
    flat = (mass * mass * variance < SLOPE_EVIDENCE) & ~empty
    slope = torch.where(flat | empty, 0.0, mean / torch.where(flat | empty, 1.0, variance))
    weights = P - slope * PC
    if bool(empty.any()):
        weights = torch.where(empty, _nearest(U.detach(), counts, excluded), weights)
    return LocalWeights(weights, flat[:, 0], empty[:, 0])


def local_linear_weights_nd(
    X_in: Float[Tensor, "n p"],
    X_out: Float[Tensor, "m p"],
    bandwidth: Float[Tensor, " p"] | float,
    *,
    kernel: Kernel = "gauss",
    excluded: Int[Tensor, " m"] | None = None,
) -> LocalWeights:
    """Local-linear weights on several predictors, with the product of the kernels of the single ones.

    A row is k_j (1 - m' C^+ (u_j - m)) / sum k, where m and C are mean and covariance of the distances u (in
    bandwidths) under the kernel. Directions in which the neighbours do not vary carry no slope: C is inverted
    on its numerical range, so that the weights degrade to those of a local constant instead of exploding.

    Args:
        X_in, X_out: predictors of the training points and of the targets.
        bandwidth: one for all predictors, or one for each.
        kernel, excluded: as for `local_linear_weights`.
    """
    function = kernel_function(kernel)
    U = (X_in[None, :, :] - X_out[:, None, :]) / bandwidth
    K = function(U).prod(2)
    if excluded is not None:
        K = K.scatter(1, excluded[:, None], 0.0)
    mass = K.sum(1, keepdim=True)
    empty = mass <= KERNEL_MASS
    P = K / torch.where(empty, 1.0, mass)
    mean = torch.einsum("mn,mnp->mp", P, U)
    centred = U - mean[:, None, :]
    covariance = torch.einsum("mn,mnp,mnq->mpq", P, centred, centred)
    values, vectors = torch.linalg.eigh(covariance)
    usable = mass * mass * values >= SLOPE_EVIDENCE
    inverse = torch.where(usable, 1 / torch.where(usable, values, 1.0), 0.0)
    slope = torch.einsum("mpk,mk,mqk,mq->mp", vectors, inverse, vectors, mean)
    weights = P * (1 - torch.einsum("mnp,mp->mn", centred, slope))
    if bool(empty.any()):
        distances = U.norm(dim=2)
        weights = torch.where(empty, _nearest(distances, None, excluded), weights)
    flat = (~usable).all(1) & ~empty[:, 0]
    return LocalWeights(weights, flat, empty[:, 0])


def global_weights(
    X_in: Float[np.ndarray, "n p"], X_out: Float[np.ndarray, "m p"]
) -> Float[np.ndarray, "m n"]:
    """Weights of global Fréchet regression: (1 + (x_i - mean)' S^+ (x - mean)) / n, S the predictors'
    covariance.

    On a Euclidean response they give the fitted values of ordinary least squares.

    Source: Petersen and Müller (2019), section 2 (global Fréchet regression).
    """
    centre = X_in.mean(0)
    C_in = X_in - centre
    precision = np.linalg.pinv(C_in.T @ C_in / len(X_in), hermitian=True)
    return (1 + (X_out - centre) @ precision @ C_in.T) / len(X_in)


def kernel_function(kernel: str) -> Callable[[Tensor], Tensor]:
    """The kernel of that name, as a function of the distance in bandwidths.

    Raises:
        InputError: there is no such kernel.
    """
    if kernel not in KERNELS:
        raise InputError(f"kernel {kernel!r} is unknown: choose one of {', '.join(KERNELS)}")
    return KERNELS[kernel]


def median_gap(z: Float[np.ndarray, " n"]) -> float:
    """The median gap between neighbouring distinct values: no bandwidth below it smooths anything."""
    gaps = np.diff(np.unique(z))
    return float(np.median(gaps)) if len(gaps) else 0.0


def _nearest(U: Tensor, counts: Tensor | None, excluded: Tensor | None) -> Tensor:
    distance = U.abs()
    if counts is not None:
        distance = torch.where(counts[None, :] > 0, distance, math.inf)
    if excluded is not None:
        distance = distance.scatter(1, excluded[:, None], math.inf)
    return torch.zeros_like(distance).scatter_(1, distance.argmin(1, keepdim=True), 1.0)
