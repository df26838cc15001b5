"""Products with packed MUL-BAL matrices, and their values: computed in registers, without a table.

`reference` says in plain torch what is computed. On the CPU it is done by C++ (or numba), on a GPU by Triton;
all give the same integers, bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.errors import InputError
from assay.methods.proteus.generators import RECORD_LENGTH, Generator
from assay.methods.proteus.kernels import reference
from assay.methods.proteus.kernels.cpu import cpu_kernels
from assay.methods.proteus.trellis import Trellis

SIDE = 16
# From so many rows of activations on, a dense product with decoded panels is faster than the kernels.
DENSE_ROWS = 32
# A decoded panel of a matrix has about so many weights, 2 MB in float32, so that it stays in a cache.
PANEL = 1 << 19

Activations = Literal["float", "int8"]


def unpack_codes(
    qweight: UInt8[Tensor, "mt nt bytes"], record: Int[Tensor, " 8"], window: int, bits: int
) -> Int[Tensor, "m n"]:
    """Z, the integers z of every weight, int32, in the order of the matrix.

    Args:
        qweight: tiles of 16 x 16 weights, 32 `bits` bytes each, contiguous.
        record: the generator's, `Generator.record`.
        window: bits of a trellis state, 4 to 16.
        bits: bits a weight, 2, 3 or 4.

    Raises:
        InputError: an argument has the wrong type, shape or value.
    """
    _check(qweight, record, window, bits)
    if _on_gpu(qweight):
        from assay.methods.proteus.kernels import gpu

        return gpu.unpack_codes(qweight, record, window, bits)
    return _kernels(qweight).unpack_codes(qweight, _generator(record), window, bits)


def matvec(
    qweight: UInt8[Tensor, "mt nt bytes"],
    record: Int[Tensor, " 8"],
    window: int,
    bits: int,
    x: Float[Tensor, "batch n"],
    *,
    activations: Activations = "float",
) -> Float[Tensor, "batch m"]:
    """x Z^T in float32.

    Fewer than `DENSE_ROWS` rows are multiplied by a kernel that decodes in registers; more rows, and `x` that
    need a gradient, by a dense product with one decoded panel after the other.

    Args:
        qweight: tiles of 16 x 16 weights, 32 `bits` bytes each, contiguous.
        record: the generator's, `Generator.record`.
        window: bits of a trellis state, 4 to 16.
        bits: bits a weight, 2, 3 or 4.
        x: activations, of any floating-point type.
        activations: `"int8"` lets a kernel round them to 8 bits, with a scale for every 16 inputs, for
            integer dot products (w2a8); a dense product ignores it.

    Raises:
        InputError: an argument has the wrong type, shape or value.
    """
    _check(qweight, record, window, bits)
    if activations not in ("float", "int8"):
        raise InputError(f"activations {activations!r}: 'float' and 'int8' are supported")
    if not x.is_floating_point() or x.ndim != 2 or x.shape[1] != SIDE * qweight.shape[1]:
        raise InputError(
            f"activations must be floating-point of shape [batch, {SIDE * qweight.shape[1]}], "
            f"not {x.dtype} {tuple(x.shape)}"
        )
    if x.device != qweight.device:
        raise InputError(
            f"activations are on {x.device} and the packed weights on {qweight.device}: move one"
        )
    # Cheaper than calls that would do nothing.
    if x.dtype != torch.float32:
        x = x.to(torch.float32)
    if not x.is_contiguous():
        x = x.contiguous()
    if len(x) >= DENSE_ROWS or (x.requires_grad and torch.is_grad_enabled()):
        return _dense_product(qweight, record, window, bits, x)
    int8 = activations == "int8"
    if _on_gpu(qweight):
        from assay.methods.proteus.kernels import gpu

        return gpu.matvec(qweight, record, window, bits, x, int8=int8)
    return _kernels(qweight).matvec(qweight, _generator(record), window, bits, x, int8=int8)


def backend(device: torch.device | str = "cpu") -> str:
    """Which kernels serve tensors on a device, and why; compiles them if that has not been done."""
    kind = torch.device(device).type
    if kind == "cuda":
        return "Triton"
    if kind == "cpu":
        kernels, reason = cpu_kernels()
        return f"{kernels.name}: {reason}"
    return f"torch: there are no kernels for {kind}"


def _dense_product(
    qweight: UInt8[Tensor, "mt nt bytes"],
    record: Int[Tensor, " 8"],
    window: int,
    bits: int,
    x: Float[Tensor, "batch n"],
) -> Float[Tensor, "batch m"]:
    height = max(1, PANEL // (SIDE * SIDE * qweight.shape[1]))
    products = []
    for panel in qweight.split(height):
        if _on_gpu(qweight):
            from assay.methods.proteus.kernels import gpu

            products.append(x @ gpu.unpack_codes(panel, record, window, bits).to(torch.float32).T)
        else:
            generator = _generator(record)
            products.append(x @ _kernels(qweight).unpack_transposed(panel, generator, window, bits))
    return torch.cat(products, dim=1)


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _kernels(tensor: Tensor):
    return cpu_kernels()[0] if tensor.device.type == "cpu" else reference


def _generator(record: Int[Tensor, " 8"]) -> Generator:
    return _generator_of(tuple(record.tolist()))


@lru_cache(maxsize=1024)
def _generator_of(entries: tuple[int, ...]) -> Generator:
    return Generator.from_record(torch.tensor(entries, dtype=torch.int32))


def _check(qweight: Tensor, record: Tensor, window: int, bits: int) -> None:
    _trellis(window, bits)
    if (
        qweight.dtype != torch.uint8
        or qweight.ndim != 3
        or qweight.shape[2] != 32 * bits
        or not qweight.numel()
    ):
        raise InputError(
            f"packed weights of {bits} bits must be uint8 of shape [rows / 16, columns / 16, {32 * bits}], "
            f"not {qweight.dtype} {tuple(qweight.shape)}"
        )
    if not qweight.is_contiguous():
        raise InputError(
            f"packed weights with strides {qweight.stride()} are not contiguous: call .contiguous()"
        )
    if record.dtype != torch.int32 or record.shape != (RECORD_LENGTH,) or not record.is_contiguous():
        raise InputError(
            f"a generator record is {RECORD_LENGTH} contiguous int32, "
            f"not {record.dtype} {tuple(record.shape)}"
        )
    if record.device != qweight.device:
        raise InputError(
            f"the generator record is on {record.device} and the packed weights on {qweight.device}"
        )


@lru_cache(maxsize=64)
def _trellis(window: int, bits: int) -> Trellis:
    """The trellis of the arguments; raises for those that there is none of."""
    return Trellis(window, bits)
