"""How often 95% intervals of a mean cover the truth when units are few: Student's t and bootstrap intervals.

python -m benchmarks.intervals
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from assay.study.statistics import MeanEstimate

STUDIES = 2000
RESAMPLES = 1000


def coverage(n: int, draw, truth: float, rng: np.random.Generator) -> dict[str, float]:
    """The share of simulated studies of `n` units whose interval contains the truth, by kind of interval."""
    hits = {"t": 0, "percentile": 0, "BCa": 0}
    for _ in range(STUDIES):
        units = draw(rng, n)
        low, high = MeanEstimate(tuple(units)).interval(0.05)
        hits["t"] += low <= truth <= high
        for kind in ("percentile", "BCa"):
            found = stats.bootstrap(
                (units,), np.mean, n_resamples=RESAMPLES, method=kind, rng=rng, vectorized=True
            ).confidence_interval
            hits[kind] += found.low <= truth <= found.high
    return {kind: count / STUDIES for kind, count in hits.items()}


def main() -> None:
    rng = np.random.default_rng(0)
    laws = {
        "normal": (lambda rng, n: rng.normal(size=n), 0.0),
        "exponential": (lambda rng, n: rng.exponential(size=n), 1.0),
    }
    print(f"{'law':<12} {'units':>5} {'t':>8} {'percentile':>11} {'BCa':>8}")
    for law, (draw, truth) in laws.items():
        for n in (5, 10, 20):
            found = coverage(n, draw, truth, rng)
            print(f"{law:<12} {n:>5} {found['t']:>8.1%} {found['percentile']:>11.1%} {found['BCa']:>8.1%}")


if __name__ == "__main__":
    main()
