"""The C++ kernels: compiled once by the compiler that is there, called through ctypes without the GIL.

The library holds every instruction set and chooses at run time, so a cached build serves any processor of the
same architecture: a cache in a home directory on the network breaks nobody.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from assay.cache import cached
from assay.methods.proteus.generators import Generator

SOURCES = Path(__file__).parent / "native"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w")
COMPILE_SECONDS = 300
INSTRUCTIONS = ("portable", "AVX2", "AVX-512 VNNI")


class CompilationError(RuntimeError):
    """The C++ kernels could not be built or loaded; the message says why."""


class NativeKernels:
    """The entry points of the compiled library.

    Args:
        instructions: an index into `INSTRUCTIONS` that this processor has; the best by default.
    """

    def __init__(self, library: ctypes.CDLL, instructions: int | None = None) -> None:
        self.library = library
        best = library.proteus_instructions()
        self.instructions = best if instructions is None else min(instructions, best)
        self.name = f"C++ ({INSTRUCTIONS[self.instructions]})"
        pointer, count, whole, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint32
        code = [pointer, count, count, whole, whole, word, word, whole, word]
        library.proteus_matvec.argtypes = [*code, pointer, count, whole, pointer, whole, whole]
        library.proteus_unpack.argtypes = [*code, pointer, whole, whole]
        library.proteus_unpack_transposed.argtypes = [*code, pointer, whole, whole]
        library.proteus_quantize.argtypes = [pointer, count, pointer, pointer]
        library.proteus_quantize.restype = None

    def matvec(
        self,
        qweight: UInt8[Tensor, "mt nt bytes"],
        generator: Generator,
        window: int,
        bits: int,
        x: Float[Tensor, "batch n"],
        *,
        int8: bool,
    ) -> Float[Tensor, "batch m"]:
        out = torch.empty(len(x), 16 * qweight.shape[0])
        self.library.proteus_matvec(
            *_code(qweight, generator, window, bits), x.data_ptr(), len(x), int8, out.data_ptr(), *self._how()
        )
        return out

    def unpack_codes(
        self, qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
    ) -> Int[Tensor, "m n"]:
        out = torch.empty(16 * qweight.shape[0], 16 * qweight.shape[1], dtype=torch.int32)
        self.library.proteus_unpack(*_code(qweight, generator, window, bits), out.data_ptr(), *self._how())
        return out

    def unpack_transposed(
        self, qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
    ) -> Float[Tensor, "n m"]:
        """Z^T in float32."""
        out = torch.empty(16 * qweight.shape[1], 16 * qweight.shape[0])
        self.library.proteus_unpack_transposed(
            *_code(qweight, generator, window, bits), out.data_ptr(), *self._how()
        )
        return out

    def _how(self) -> tuple[int, int]:
        return torch.get_num_threads(), self.instructions


def _code(
    qweight: UInt8[Tensor, "mt nt bytes"], generator: Generator, window: int, bits: int
) -> tuple[int, int, int, int, int, int, int, int, int]:
    minus = sum(1 << byte for byte, sign in enumerate(generator.signs) if sign < 0)
    row_tiles, column_tiles, _ = qweight.shape
    word = (generator.multiplier, generator.addend, generator.shift, minus)
    return (qweight.data_ptr(), row_tiles, column_tiles, bits, window, *word)


@lru_cache(maxsize=1)
def native_kernels() -> NativeKernels:
    """The C++ kernels, compiled if this machine has not done so before (about ten seconds).

    Raises:
        CompilationError: there is no compiler, it fails, or its result does not load.
    """
    library = load_library(SOURCES / "decode.cpp")
    share_openmp(library)
    return NativeKernels(library)


def share_openmp(library: ctypes.CDLL) -> None:
    """Let a library run its threads in the OpenMP runtime that torch brings, where there is one."""
    for file in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        try:
            # Only if it is loaded: another copy would be another pool.
            runtime = ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.use_openmp(runtime.GOMP_parallel)
        except (OSError, AttributeError):
            continue


def load_library(source: Path, *, include: Path = SOURCES) -> ctypes.CDLL:
    """Compile one C++ file with the headers in `include`, or take the build from assay's cache, and load it.

    Raises:
        CompilationError: there is no compiler, it fails, or its result does not load.
    """
    compiler = _compiler()
    files = sorted({source, *include.glob("*.hpp")})
    key = {
        "sources": hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest(),
        "flags": list(FLAGS),
        "compiler": _version(compiler),
        "platform": [sys.platform, platform.machine(), *platform.libc_ver()],
    }

    def build(folder: Path) -> None:
        command = [compiler, *FLAGS, "-I", str(include), str(source), "-o", str(folder / "kernels.so")]
        _run(command)

    try:
        return ctypes.CDLL(str(cached("proteus-kernels", key, build) / "kernels.so"))
    except OSError as error:
        raise CompilationError(f"the compiled kernels can't be stored or loaded: {error}") from error


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise CompilationError(f"no C++ compiler ({', '.join(COMPILERS)}) is on the PATH, and $CXX names none")


def _version(compiler: str) -> str:
    return _run([compiler, "--version"]).splitlines()[0]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=True)
    except subprocess.CalledProcessError as error:
        reason = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip())
        raise CompilationError(f"{command[0]} failed: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationError(f"{command[0]} did not run: {error}") from error
    return done.stdout
