"""How much faster the exact replace-one shortcuts are than fitting again, and how far they are from it.

python -m benchmarks.lp_stability_replace_one
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from assay.methods.lp_stability.fits import perturbable_fits

# Fitting again is timed on this many pairs; every pair costs the same.
REFITS = 5


@dataclass(frozen=True)
class Case:
    """A learner with its sample and what the shortcut has to reach.

    Args:
        least_ratio: time for fitting again / time for the shortcut, per pair.
        most_difference: of a prediction.
    """

    estimator: Any
    m: int
    d: int
    pairs: int
    least_ratio: float
    most_difference: float = 1e-9


CASES = (
    Case(Ridge(1.0), m=5000, d=100, pairs=1000, least_ratio=100),
    Case(Ridge(1.0, fit_intercept=False), m=5000, d=100, pairs=1000, least_ratio=100),
    Case(KernelRidge(1, kernel="rbf"), m=2000, d=20, pairs=500, least_ratio=50),
)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def compare(case: Case, rng: np.random.Generator) -> tuple[float, float, float]:
    """Seconds a pair for fitting again and for the shortcut (factorised anew); the largest difference."""
    X, y = rng.normal(size=(case.m, case.d)), rng.standard_t(3, size=case.m)
    rows = rng.integers(case.m, size=case.pairs)
    X_new, y_new = rng.normal(size=(case.pairs, case.d)), rng.standard_t(3, size=case.pairs)
    points = rng.normal(size=(50, case.d))

    def shortcut() -> np.ndarray:
        return perturbable_fits(case.estimator, X, y, points).replace(rows, X_new, y_new).at_points

    def refits() -> np.ndarray:
        predictions = []
        for k in range(REFITS):
            X_swapped, y_swapped = X.copy(), y.copy()
            X_swapped[rows[k]], y_swapped[rows[k]] = X_new[k], y_new[k]
            model: Any = clone(case.estimator)
            predictions.append(model.fit(X_swapped, y_swapped).predict(points))
        return np.array(predictions)

    refits()
    slow, reference = seconds(refits)
    fast, found = seconds(shortcut)
    return slow / REFITS, fast / case.pairs, float(np.abs(found[:REFITS] - reference).max())


def main() -> None:
    rng = np.random.default_rng(0)
    columns = f"{'refit ms':>9} {'shortcut ms':>12} {'ratio':>7} {'difference':>11}"
    print(f"{'learner':<36} {'m':>5} {'pairs':>6} {columns}")
    failed = []
    for case in CASES:
        slow, fast, difference = compare(case, rng)
        ratio, name = slow / fast, repr(case.estimator)
        print(
            f"{name:<36} {case.m:>5} {case.pairs:>6} {slow * 1e3:>9.3g} {fast * 1e3:>12.3g} {ratio:>7.0f} "
            f"{difference:>11.2g}"
        )
        if ratio < case.least_ratio or difference > case.most_difference:
            failed.append(f"{name}: needs a ratio of {case.least_ratio:g} and {case.most_difference:g}")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
