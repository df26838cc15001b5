"""proteus' encoder and decoder beside peers, as ratios in one run; contestants take turns.

OMP_NUM_THREADS=1 python -m benchmarks.proteus

Encoding is measured in CPU time (median of turns). A product on one thread is, too (best of many turns); on
two threads by the clock, which needs a quiet machine: others delay long products more than short ones.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from assay.methods.proteus import kernels
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.kernels import native, numba_kernels
from assay.methods.proteus.pool import pool
from assay.methods.proteus.table_decoder import WAYS, TableDecoder
from assay.methods.proteus.trellis import Trellis
from assay.methods.proteus.viterbi import encode_tiles, encode_tiles_reference

SHAPES = ((576, 576), (576, 1536), (1536, 576), (4096, 4096), (4096, 14336))
# Peers of a product, and how wide their columns are printed.
PEERS = {"table 2^16": 25, "table 2^12": 25, "torch fp32": 16, "torch bf16": 16}
SECONDS_A_SHAPE = 3.0
GENERATOR = pool(16, 2)[0]

# (rows, columns, how many) of the quantized matrices, and how many weights in 16 bits a token reads.
MODELS = {
    "SmolLM2-135M": (
        [(576, 576, 60), (192, 576, 60), (1536, 576, 60), (576, 1536, 30)],
        49152 * 576 + 61 * 576,
    ),
    "Llama-2-70B": (
        [(8192, 8192, 160), (1024, 8192, 160), (28672, 8192, 160), (8192, 28672, 80)],
        32000 * 8192 + 161 * 8192,
    ),
}


# --------------------------------------------------------------------------------------------------- encoder


def encoder() -> None:
    _cpu_times({"compiled": partial(_encode, 1, Trellis(8, 2), encode_tiles)}, rounds=1)
    print("Encoder, 2 bits, one thread: microseconds of CPU a weight, and what it adds to the peak of memory")
    print(f"{'window':>6} {'tiles':>6} {'ours':>8} {'torch':>9} {'ratio':>7} {'ours':>8} {'torch':>8}")
    for window, tiles, peer in ((8, 64, True), (10, 32, True), (12, 16, True), (16, 4, False)):
        trellis = Trellis(window, 2)
        contestants = {"ours": partial(_encode, tiles, trellis, partial(encode_tiles, threads=1))}
        if peer:
            contestants["torch"] = partial(_encode, tiles, trellis, encode_tiles_reference)
        memory = {name: _added_memory(action) for name, action in contestants.items()}
        spent = _cpu_times(contestants, rounds=3)
        cost = {name: 1e6 * seconds / (tiles * trellis.length) for name, seconds in spent.items()}
        line = f"{window:>6} {tiles:>6} {cost['ours']:>8.3f}"
        if peer:
            line += f" {cost['torch']:>9.3f} {cost['torch'] / cost['ours']:>6.1f}x"
            line += f" {memory['ours']:>5.0f} MB {memory['torch']:>5.0f} MB"
        else:
            line += f" {'':>9} {'':>7} {memory['ours']:>5.0f} MB"
        print(line, flush=True)
    print()


def _encode(tiles: int, trellis: Trellis, encode: Callable[[Tensor, Tensor, Trellis], Tensor]) -> Tensor:
    x = torch.randn(tiles, trellis.length, generator=torch.Generator().manual_seed(0))
    return encode(x, GENERATOR.table(trellis.window) / 147.8, trellis)


def _cpu_times(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, action in contestants.items():
            start = time.process_time()
            action()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _added_memory(action: Callable[[], object]) -> float:
    """How much the first call raises the process's peak, in MB; compiled or warmed up by it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    action()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


# --------------------------------------------------------------------------------------------------- decoder


def decoder() -> None:
    compiled = native.native_kernels()
    levels = range(compiled.library.proteus_instructions() + 1)
    technology({native.INSTRUCTIONS[k]: native.NativeKernels(compiled.library, k) for k in levels})
    table = TableDecoder()
    slower = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        print(f"Product with one vector, {_threads(threads)}: billions of weights a second")
        print("(in brackets: ours over the peer, float / int8 activations; a table's best way of looking up;")
        print(f" multiplier {GENERATOR.multiplier:#x}, r = {GENERATOR.shift}; ours checks its arguments)")
        heading = f"{'m x n':>12} {'float':>6} {'int8':>6}"
        heading += "".join(f" {name:>{width}}" for name, width in PEERS.items())
        print(f"{heading} {'packed':>8} {'bf16':>8}")
        for m, n in SHAPES:
            slower += _compare(table, m, n, threads)
        print()
    torch.set_num_threads(1)
    print(
        "Slower than the peer: " + ("; ".join(slower) if slower else "nowhere in this run") + "\n", flush=True
    )


def _threads(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _compare(table: TableDecoder, m: int, n: int, threads: int) -> list[str]:
    random = torch.Generator().manual_seed(m + n)
    qweight = torch.randint(0, 256, (m // 16, n // 16, 64), dtype=torch.uint8, generator=random)
    record = GENERATOR.record()
    x = torch.randn(1, n, generator=random)
    dense = torch.randn(m, n, generator=random)
    halves, half = dense.to(torch.bfloat16), x[0].to(torch.bfloat16)
    contestants: dict[str, Callable[[], Tensor]] = {
        "float": lambda: kernels.matvec(qweight, record, 16, 2, x),
        "int8": lambda: kernels.matvec(qweight, record, 16, 2, x, activations="int8"),
        "torch fp32": lambda: torch.mv(dense, x[0]),
        "torch bf16": lambda: torch.mv(halves, half),
    }
    for window in (16, 12):
        values = GENERATOR.table(window).to(torch.float32)
        exact = kernels.matvec(qweight, record, window, 2, x)[0]
        for way in table.ways:
            name = f"table 2^{window} {WAYS[way]}"
            contestants[name] = lambda w=window, v=values, way=way: table.matvec(qweight, w, v, x, way)
            atol = 1e-4 * float(exact.abs().max())
            torch.testing.assert_close(contestants[name](), exact, rtol=1e-4, atol=atol)
    best = _best_times(contestants)
    speed = {name: m * n / seconds / 1e9 for name, seconds in best.items()}
    line = f"{f'{m} x {n}':>12} {speed['float']:>6.1f} {speed['int8']:>6.1f}"
    slower = []
    for peer, width in PEERS.items():
        name = max((name for name in speed if name.startswith(peer)), key=speed.__getitem__)
        ratios = {kind: speed[kind] / speed[name] for kind in ("float", "int8")}
        text = f"{speed[name]:.1f} ({ratios['float']:.1f} / {ratios['int8']:.1f}){name.removeprefix(peer)}"
        line += f" {text:>{width}}"
        slower += [
            f"{m} x {n}, {_threads(threads)}, {kind}: {ratio:.2f}x {peer}"
            for kind, ratio in ratios.items()
            if ratio < 1
        ]
    packed = (qweight.numel() + 2 * (m + n) + 40) / 1e6
    print(f"{line} {packed:>5.2f} MB {2 * m * n / 1e6:>5.1f} MB", flush=True)
    return slower


def technology(kernels_of: dict[str, native.NativeKernels]) -> None:
    """Why C++: the same product by each instruction set and by numba."""
    m = n = 4096
    random = torch.Generator().manual_seed(0)
    qweight = torch.randint(0, 256, (m // 16, n // 16, 64), dtype=torch.uint8, generator=random)
    x = torch.randn(1, n, generator=random)
    plain, mixing = Generator(0x83DCD12D, 0, 0, (1, 1, 1, 1)), Generator(0x9E3779B1, 0, 15, (1, -1, 1, -1))
    print(f"Technologies, {m} x {n}, one thread: billions of weights a second")
    print(f"{'':<20} {'float':>7} {'int8':>7} {'float, r > 0':>13} {'int8, r > 0':>12}")
    for name, backend in [*kernels_of.items(), ("numba", numba_kernels)]:
        contestants = {
            f"{kind}{shift}": lambda b=backend, g=generator, k=kind: b.matvec(
                qweight, g, 16, 2, x, int8=k == "int8"
            )
            for generator, shift in ((plain, 0), (mixing, 1))
            for kind in ("float", "int8")
        }
        best = _best_times(contestants, seconds=0.6)
        speed = [m * n / best[key] / 1e9 for key in ("float0", "int80", "float1", "int81")]
        print(f"{name:<20} {speed[0]:>7.2f} {speed[1]:>7.2f} {speed[2]:>13.2f} {speed[3]:>12.2f}", flush=True)
    print()


def _best_times(
    contestants: Mapping[str, Callable[[], Tensor]], seconds: float = SECONDS_A_SHAPE
) -> dict[str, float]:
    """The shortest time of each, taking turns for about `seconds`, at least five turns and at most 200.

    A turn is two calls, of which the second counts: in it the caches hold what this contestant reads, not
    what the one before it did.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(contestants, float("inf"))
    end = time.perf_counter() + seconds
    for turn in range(200):
        for name, action in contestants.items():
            action()
            start = clock()
            action()
            best[name] = min(best[name], clock() - start)
        if turn >= 4 and time.perf_counter() > end:
            break
    return best


# ----------------------------------------------------------------------------------------------------- bytes


def bytes_a_token() -> None:
    print("Weights that one token reads, counted from the formats, MB")
    names = ("tiles", "scales", "tables", "16 bits", "all", "bf16 / all")
    print(f"{'model':<14} {'format':<25}" + "".join(f" {name:>10}" for name in names))
    for model, (matrices, rest) in MODELS.items():
        weights = sum(m * n * count for m, n, count in matrices)
        scales = sum((2 * (m + n) + 40) * count for m, n, count in matrices)
        layers = sum(count for _, _, count in matrices)
        formats = {
            "bf16": (2 * weights, 0, 0, 2 * rest),
            "proteus": (weights / 4, scales, 0, 2 * rest),
            "HYB table, 2^9 x 2 fp16": (weights / 4, scales, 2**11 * layers, 2 * rest),
            "table of 2^16 fp16": (weights / 4, scales, 2**17 * layers, 2 * rest),
        }
        for name, parts in formats.items():
            columns = "".join(f" {part / 1e6:>10.2f}" for part in (*parts, sum(parts)))
            print(f"{model:<14} {name:<25}{columns} {2 * (weights + rest) / sum(parts):>9.2f}x")
    print("A small table hardly adds bytes: what it costs is the look-ups.")


def main() -> None:
    torch.set_num_threads(1)
    encoder()
    decoder()
    bytes_a_token()


if __name__ == "__main__":
    main()
