"""Ten thousand concentration radii in one call, beside a root-finder that solves them one by one.

OMP_NUM_THREADS=1 python -m benchmarks.lp_stability

Both solve the same problems. The peer is scalar code around `scipy.optimize`: at every trial radius the best
truncation level by bounded minimisation, the radius itself by `brentq`. It solves Bennett's form of the
bound; `radii` solves that form and the sharper two-level one. How much sharper is printed too.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from assay.methods.lp_stability.concentration import radii
from assay.methods.lp_stability.truncation import TruncationSums, bennett_moment_radius

RADII = 10_000
PEER_RADII = 100


def scalar_radius(delta: float, n: float, p: float, moment_p: float) -> float:
    """The radius of Bennett's truncation bound for E H^2 = 1, by nested scalar solvers."""
    mp, variance = n * moment_p, n / 2

    def log_bound(log_y: float, z: float) -> float:
        y = math.exp(log_y)
        excess = z - mp / y ** (p - 1)
        if excess <= 0:
            return 0.0
        u = excess * y / variance
        exponent = variance / y**2 * ((1 + u) * math.log1p(u) - u)
        return math.log(mp / y**p + math.exp(-exponent))

    low = math.log(mp) / p

    def log_tail(log_z: float) -> float:
        z = math.exp(log_z)
        # Where the exponential term takes over the bound falls and rises again; a grid brackets the valley.
        grid = np.linspace(low, max(log_z, low) + 2.0, 24)
        start = int(np.argmin([log_bound(x, z) for x in grid]))
        bracket = (grid[max(start - 1, 0)], grid[min(start + 1, grid.size - 1)])
        found: Any = minimize_scalar(
            log_bound, args=(z,), bounds=bracket, method="bounded", options={"xatol": 1e-7}
        )
        return float(found.fun)

    start = 0.5 * math.log(variance)
    return math.exp(brentq(lambda x: log_tail(x) - math.log(delta), start - 3, start + 25, xtol=1e-9))  # type: ignore[arg-type]


def main() -> None:
    rng = np.random.default_rng(0)
    delta = 10 ** rng.uniform(-8, -1, RADII)
    n = np.floor(10 ** rng.uniform(1, 5, RADII))
    p = rng.uniform(2.2, 8, RADII)
    moment_p = np.exp(rng.exponential(1.5, RADII))

    start = time.perf_counter()
    vectorised = radii(delta, n, p=p, moment_p=moment_p, moment_2=1.0, bound="optimised")
    ours = time.perf_counter() - start

    start = time.perf_counter()
    one_by_one = np.array([scalar_radius(delta[i], n[i], p[i], moment_p[i]) for i in range(PEER_RADII)])
    peer = (time.perf_counter() - start) / PEER_RADII * RADII

    sums = TruncationSums(p, np.log(n * moment_p), np.log(n * moment_p), n / 2)
    start = time.perf_counter()
    bennett_form = np.asarray(bennett_moment_radius(delta, sums)[0])
    same_form = time.perf_counter() - start
    disagreement = np.max(np.abs(bennett_form[:PEER_RADII] / one_by_one - 1))
    sharper = np.quantile(vectorised / bennett_form, [0.1, 0.5, 0.9])

    for what, seconds in (
        (f"one by one (brentq; from {PEER_RADII}), Bennett's form", peer),
        ("in one call, Bennett's form", same_form),
        ("in one call, both forms", ours),
    ):
        print(f"{RADII} radii {what:<50} {seconds:7.2f} s  {peer / seconds:5.1f} times faster")
    print(f"largest relative disagreement    {disagreement:8.1e}  (Bennett's form)")
    print(
        "radius over Bennett's form        " + ", ".join(f"{q:.2f}" for q in sharper) + "  (10 %, 50 %, 90 %)"
    )


if __name__ == "__main__":
    main()
