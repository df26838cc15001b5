"""Which kernels run on the CPU: C++ where a compiler is found, else numba, else plain torch."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Protocol

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels import reference
from assay.methods.proteus.kernels.native import CompilationError, native_kernels


class Kernels(Protocol):
    """What `reference` defines, with `unpack_transposed` for Z^T in float32."""

    @property
    def name(self) -> str: ...

    def matvec(
        self,
        qweight: UInt8[Tensor, "mt nt bytes"],
        generator: Generator,
        window: int,
        bits: int,
        x: Float[Tensor, "batch n"],
        *,
        int8: bool,
    ) -> Float[Tensor, "batch m"]: ...

    def unpack_codes(
        self, qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
    ) -> Int[Tensor, "m n"]: ...

    def unpack_transposed(
        self, qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
    ) -> Float[Tensor, "n m"]: ...


@lru_cache(maxsize=1)
def cpu_kernels() -> tuple[Kernels, str]:
    """The fastest kernels that run here, and in a few words why these; one warning where they are slow."""
    try:
        return native_kernels(), "compiled on this machine"
    except CompilationError as error:
        reason = str(error)
    try:
        from assay.methods.proteus.kernels import numba_kernels
    except ImportError:
        warnings.warn(
            f"proteus decodes with plain torch, some hundred times slower than in C++: {reason}; "
            "numba is missing too. Install a C++ compiler, or: pip install 'assay[lm]'",
            stacklevel=2,
        )
        return reference, reason
    warnings.warn(
        f"proteus decodes with numba, about ten times slower than in C++: {reason}. Install a C++ compiler",
        stacklevel=2,
    )
    return numba_kernels, reason
