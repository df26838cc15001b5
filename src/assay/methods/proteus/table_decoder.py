"""The decoder that proteus replaces: the same tiles, but values are looked up in a table of all states.

It is a peer for measurements, compiled like the kernels (`table_decoder.cpp`), in three ways of looking up.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from assay.methods.proteus.kernels import native

WAYS = ("loads", "gather8", "gather16")


class TableDecoder:
    """Products with packed matrices of 2 bits a weight whose values come from a table.

    Attributes:
        ways: indices into `WAYS` that this processor has; none where it is not an x86 with AVX2.

    Raises:
        CompilationError: there is no C++ compiler.
    """

    def __init__(self) -> None:
        self.library = native.load_library(Path(__file__).with_name("table_decoder.cpp"))
        pointer, count, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        code = [pointer, count, count, whole, pointer]
        self.library.table_matvec.argtypes = [*code, pointer, pointer, whole, whole]
        native.share_openmp(self.library)
        self.ways = range(self.library.table_ways())

    def matvec(
        self,
        qweight: UInt8[Tensor, "mt nt 64"],
        window: int,
        table: Float[Tensor, " states"],
        x: Float[Tensor, " n"],
        way: int,
    ) -> Float[Tensor, " m"]:
        """The product with one vector, looked up in the given way."""
        out = torch.empty(16 * qweight.shape[0])
        operands = (table.data_ptr(), x.data_ptr(), out.data_ptr())
        self.library.table_matvec(
            qweight.data_ptr(), *qweight.shape[:2], window, *operands, way, torch.get_num_threads()
        )
        return out
