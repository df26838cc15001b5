"""Incoherence processing: random signs and fast orthogonal transforms of any dimension.

With orthogonal matrices A_m, A_n and random signs, W~ = A_m diag(sv) W diag(su) A_n^T looks Gaussian whatever
W looked like, and the second moment of its inputs is H~ = A_n diag(su) H diag(su) A_n^T. Every A is a
Kronecker product of small matrices, and is applied one small matrix at a time.

Source: Tseng et al. (2024), QuIP#, section 3 (random Hadamard transform); the choice by dimension is ours.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.hadamard import paley, paley_factors, sylvester

Kind = Literal["sylvester", "paley", "block", "orthogonal"]

TILE = 16
# A block Hadamard transform mixes only within its blocks; shorter ones would leave outliers standing out.
SHORTEST_BLOCK = 64
# Sylvester matrices are applied in pieces of at most this power of two: a small matrix product uses the
# hardware better than the same number of separate butterfly passes.
_LARGEST_PIECE = 6


@dataclass(frozen=True)
class Transform:
    """An orthogonal matrix A of order `size`, as a Kronecker product that is never multiplied out.

    A is `B (x) H / sqrt(order of H)` with the Sylvester-Hadamard matrix H of order 2^power and
    B the normalised Paley matrices of `orders` (kind "paley"), the identity (kind "block"), or the stored
    `matrix` (kind "orthogonal"); for kind "sylvester" B is 1.

    Attributes:
        kind: which of the four constructions.
        size: the order of A.
        orders: the Paley orders, for kind "paley".
        matrix: a k x k orthogonal matrix, for kind "orthogonal"; it belongs into a checkpoint, because its
            last bits depend on the linear algebra library that made it.
    """

    kind: Kind
    size: int
    orders: tuple[int, ...] = ()
    matrix: Float[Tensor, "k k"] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        outer = math.prod(self.orders)
        if self.kind not in ("sylvester", "paley", "block", "orthogonal"):
            raise InputError(f"{self.kind!r} is not a kind of transform")
        if self.kind == "sylvester" and self.size & (self.size - 1):
            raise InputError(
                f"a Sylvester-Hadamard matrix of order {self.size} does not exist; use kind 'auto'"
            )
        if self.kind == "paley" and (
            not self.orders or self.size % outer or (self.size // outer) & (self.size // outer - 1)
        ):
            raise InputError(f"Paley orders {self.orders} do not make up a dimension of {self.size}")
        if self.kind == "orthogonal" and self.matrix is not None:
            odd = self.size >> _twos(self.size)
            if tuple(self.matrix.shape) != (odd, odd):
                raise InputError(
                    f"the orthogonal matrix for {self.size} channels has shape {tuple(self.matrix.shape)}, "
                    f"not {(odd, odd)}"
                )

    @property
    def power(self) -> int:
        """The exponent of the Sylvester factor."""
        if self.kind == "paley":
            return _twos(self.size // math.prod(self.orders))
        return _twos(self.size)

    def apply(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """A x on the last axis. Differentiable; float32 and float64 keep their precision."""
        return self._multiply(x, transpose=False)

    def inverse(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """A^T x on the last axis."""
        return self._multiply(x, transpose=True)

    def dense(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "d d"]:
        """A itself, multiplied out. For tests and small dimensions."""
        result = torch.ones(1, 1, dtype=dtype)
        for order, factor in self._factors(dtype, torch.device("cpu")):
            result = torch.kron(result, torch.eye(order, dtype=dtype) if factor is None else factor)
        return result

    def to_config(self) -> dict[str, Any]:
        """What determines the transform, as JSON values; the matrix of kind "orthogonal" is not included."""
        config: dict[str, Any] = {"kind": self.kind, "size": self.size}
        if self.orders:
            config["orders"] = list(self.orders)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], matrix: Float[Tensor, "k k"] | None = None) -> Transform:
        """The transform of `to_config`; kind "orthogonal" needs its stored matrix before it is applied.

        Raises:
            InputError: the configuration is not one of a transform.
        """
        try:
            kind, size = config["kind"], int(config["size"])
            orders = tuple(int(order) for order in config.get("orders", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{config!r} does not describe a transform: {error}") from error
        return cls(kind, size, orders, matrix)

    def _multiply(self, x: Tensor, *, transpose: bool) -> Tensor:
        if x.shape[-1] != self.size:
            raise ValueError(f"the transform is for {self.size} channels, not {x.shape[-1]}")
        shape = x.shape
        rest = self.size
        for order, factor in self._factors(x.dtype, x.device):
            rest //= order
            if factor is None:
                continue
            if transpose:
                factor = factor.mT
            if rest == 1:
                x = x.reshape(-1, order) @ factor.mT
            else:
                x = factor @ x.reshape(-1, order, rest)
        return x.reshape(shape)

    def _factors(self, dtype: torch.dtype, device: torch.device) -> list[tuple[int, Tensor | None]]:
        """The order of every Kronecker factor and the factor itself; None stands for an identity."""
        factors: list[tuple[int, Tensor | None]] = []
        if self.kind == "paley":
            factors += [(order, _normalised("paley", order, dtype, device)) for order in self.orders]
        elif self.kind == "block":
            blocks = self.size >> self.power
            factors.append((blocks, None))
        elif self.kind == "orthogonal":
            if self.matrix is None:
                raise ValueError("the orthogonal matrix of this transform has not been loaded")
            factors.append((self.matrix.shape[0], self.matrix.to(dtype=dtype, device=device)))
        factors += [
            (1 << power, _normalised("sylvester", power, dtype, device)) for power in _pieces(self.power)
        ]
        return factors


def transform_for(size: int, kind: Literal["auto"] | Kind = "auto", *, seed: int = 0) -> Transform:
    """The transform for a dimension: the first of the four kinds that fits it, or the kind asked for.

    1. "sylvester" for a power of two. 2. "paley" where Paley orders and a power of two make up the
    dimension: the fewest factors, each at most 512. 3. "block" with the largest power of two that
    divides the dimension, if that is at least 64. 4. "orthogonal": a random orthogonal matrix for
    the odd part.

    Args:
        size: the dimension, positive.
        kind: "auto", or a kind that must be used.
        seed: of the random matrix of kind "orthogonal"; the others do not depend on it.

    Raises:
        InputError: `size` is not positive, or the kind asked for does not exist or does not fit.

    Source: ours.
    """
    if size < 1:
        raise InputError(f"a transform needs a positive dimension, not {size}")
    if kind not in ("auto", "sylvester", "paley", "block", "orthogonal"):
        raise InputError(
            f"{kind!r} is not a kind of transform; use 'auto', 'sylvester', 'paley', 'block' or 'orthogonal'"
        )
    twos = _twos(size)
    odd = size >> twos
    if kind == "sylvester" or (kind == "auto" and odd == 1):
        return Transform("sylvester", size)
    if kind in ("auto", "paley"):
        orders = paley_factors(odd, twos)
        if orders:
            return Transform("paley", size, orders)
    if kind == "block" or (kind == "auto" and 1 << twos >= SHORTEST_BLOCK):
        return Transform("block", size)
    if kind in ("auto", "orthogonal"):
        return Transform("orthogonal", size, matrix=_random_orthogonal(odd, seed))
    raise InputError(f"no Paley matrices make up a dimension of {size}; use kind 'auto'")


def signs(size: int, *, seed: int, name: str, side: Literal["input", "output"]) -> Float[Tensor, " d"]:
    """Random signs, determined by the seed, the name and the side, and by nothing else.

    Args:
        size: how many.
        seed: of the whole model.
        name: the module's path; for input signs of modules that receive the same tensor, their group's.
        side: the signs of the input channels or of the output channels.
    """
    digest = hashlib.shake_256(f"{seed}\0{side}\0{name}".encode()).digest(-(-size // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[:size]
    return torch.from_numpy(1.0 - 2.0 * bits).float()


def padded(size: int) -> int:
    """The next multiple of 16, the side of a tile."""
    return -(-size // TILE) * TILE


@dataclass(frozen=True)
class Rotation:
    """The change of basis of one weight: padding to whole tiles, signs (or scales), and a transform a side.

    Attributes:
        su: a factor for every input channel.
        sv: a factor for every output channel.
        inputs: A_n, of the padded dimension.
        outputs: A_m, likewise.
    """

    su: Float[Tensor, " n"]
    sv: Float[Tensor, " m"]
    inputs: Transform
    outputs: Transform

    def to(self, device: torch.device | str) -> Rotation:
        """The same, for weights on a device."""
        return Rotation(self.su.to(device), self.sv.to(device), self.inputs, self.outputs)

    def apply(self, weight: Float[Tensor, "m n"]) -> Float[Tensor, "mp np"]:
        """A_m diag(sv) W diag(su) A_n^T."""
        signed = self.sv[:, None] * weight * self.su
        rows, columns = self.outputs.size - len(self.sv), self.inputs.size - len(self.su)
        signed = torch.nn.functional.pad(signed, (0, columns, 0, rows))
        return self.outputs.apply(self.inputs.apply(signed).mT).mT.contiguous()

    def restore(self, rotated: Float[Tensor, "mp np"]) -> Float[Tensor, "m n"]:
        """diag(sv) A_m^T W~ A_n diag(su), cropped: the inverse of `apply` when su and sv are signs."""
        m, n = len(self.sv), len(self.su)
        weight = self.inputs.inverse(rotated)[:, :n]
        weight = self.outputs.inverse(weight.mT)[:, :m].mT
        return self.sv[:, None] * weight * self.su

    def restore_constant(self) -> tuple[Float[Tensor, " m"], Float[Tensor, " n"]]:
        """`restore` of a matrix of ones, as the two vectors of an outer product."""
        rows = self.outputs.inverse(torch.ones_like(self.sv[:1]).expand(self.outputs.size))
        columns = self.inputs.inverse(torch.ones_like(self.su[:1]).expand(self.inputs.size))
        return self.sv * rows[: len(self.sv)], self.su * columns[: len(self.su)]


def _twos(size: int) -> int:
    """The exponent of two in `size`."""
    return (size & -size).bit_length() - 1


def _pieces(power: int) -> list[int]:
    """`power` as a sum of nearly equal numbers that are at most `_LARGEST_PIECE`."""
    count = -(-power // _LARGEST_PIECE)
    return [power // count + (i < power % count) for i in range(count)]


@lru_cache(maxsize=128)
def _normalised(kind: str, number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An orthogonal Paley matrix of an order, or a Sylvester matrix of a power."""
    matrix = paley(number) if kind == "paley" else sylvester(number)
    # A cached tensor must be usable in training, wherever it was first asked for.
    with torch.inference_mode(False):
        return (torch.from_numpy(matrix).double() / math.sqrt(len(matrix))).to(dtype=dtype, device=device)


def _random_orthogonal(order: int, seed: int) -> Float[Tensor, "k k"]:
    """A random orthogonal matrix, uniform over the orthogonal group (Mezzadri 2007), in float32."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):
        q, r = torch.linalg.qr(torch.randn(order, order, generator=generator, dtype=torch.float64))
        return (q * r.diagonal().sign()).float().contiguous()
