"""DeSI's projections and training step beside general-purpose solvers, as ratios in one run.

OMP_NUM_THREADS=1 python -m benchmarks.desi
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cvxpy
import numpy as np
import torch
from scipy.optimize import isotonic_regression, lsq_linear

from assay.methods.desi.projection import project_laplacian, project_monotone
from assay.methods.desi.simulate import simulate
from assay.methods.desi.weights import local_linear_weights

ROWS, LEVELS, NODES = 500, 100, 10


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of a few wall times; one call before them compiles and warms up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def show(what: str, ours: float, peer: str, theirs: float, difference: float) -> None:
    print(
        f"{what:<44} {ours:>10.3e} s  {peer:<28} {theirs:>10.3e} s  {theirs / ours:>8.1f}x  {difference:.1e}"
    )


def monotone(rng: np.random.Generator) -> None:
    rows = np.sort(rng.normal(size=(ROWS, LEVELS)), axis=1) + 0.3 * rng.normal(size=(ROWS, LEVELS))
    ours = seconds(lambda: project_monotone(rows))
    projected = project_monotone(rows)

    def with_scipy() -> np.ndarray:
        return np.stack([isotonic_regression(row).x for row in rows])

    theirs = seconds(with_scipy)
    show(f"monotone projection, {ROWS} x {LEVELS}", ours, "scipy isotonic_regression", theirs,
         float(np.abs(projected - with_scipy()).max()))  # fmt: skip
    few = rows[:20]
    solve = _quadratic_programme()
    theirs = seconds(lambda: [solve(row) for row in few], repeats=2) * ROWS / len(few)
    show(f"monotone projection, {ROWS} x {LEVELS}", ours, "cvxpy quadratic programme", theirs,
         float(np.abs(projected[:20] - [solve(row) for row in few]).max()))  # fmt: skip


def laplacian(rng: np.random.Generator) -> None:
    matrices = rng.normal(size=(200, NODES, NODES))
    matrices = (matrices + matrices.transpose(0, 2, 1)) / 2
    ours = seconds(lambda: project_laplacian(matrices, None))
    pairs = np.column_stack(np.triu_indices(NODES, 1))
    # An edge's own Laplacian, as a vector: the projection is a bounded least-squares problem in the edges.
    design = np.zeros((NODES * NODES, len(pairs)))
    for column, (k, m) in enumerate(pairs):
        for row, value in (((k, k), 1), ((m, m), 1), ((k, m), -1), ((m, k), -1)):
            design[row[0] * NODES + row[1], column] = value

    def with_scipy(matrix: np.ndarray) -> np.ndarray:
        edges = lsq_linear(design, matrix.ravel(), (0, np.inf), method="bvls", tol=1e-12).x
        return (design @ edges).reshape(NODES, NODES)

    few = matrices[:20]
    theirs = seconds(lambda: [with_scipy(matrix) for matrix in few], repeats=2) * len(matrices) / len(few)
    difference = np.abs(project_laplacian(few, None) - [with_scipy(matrix) for matrix in few]).max()
    show(
        f"Laplacian projection, 200 x {NODES} nodes",
        ours,
        "scipy lsq_linear (bvls)",
        theirs,
        float(difference),
    )


def training_step(rng: np.random.Generator) -> None:
    sample = simulate("distributions", ROWS, link="quadratic", seed=0)
    X, Y = torch.from_numpy(sample.X), torch.from_numpy(sample.Y)
    theta = torch.from_numpy(sample.direction).requires_grad_()
    own = torch.arange(ROWS)

    def step() -> None:
        z = X @ theta
        weights = local_linear_weights(z, z, 0.1, excluded=own).weights
        sample.space.loss(Y, weights, Y).mean().backward()

    ours = seconds(step)
    with torch.no_grad():
        z = X @ theta
        means = (local_linear_weights(z, z, 0.1, excluded=own).weights @ Y).numpy()
    solve = _quadratic_programme()
    # A general solver needs one programme per row, before any gradient.
    theirs = seconds(lambda: [solve(row) for row in means[:20]], repeats=2) * ROWS / 20
    show(f"training step with gradient, n = {ROWS}", ours, "its projections by cvxpy", theirs, float("nan"))


def _quadratic_programme() -> Callable[[np.ndarray], np.ndarray]:
    target = cvxpy.Parameter(LEVELS)
    fitted = cvxpy.Variable(LEVELS)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(fitted - target)), [cvxpy.diff(fitted) >= 0])

    def solve(row: np.ndarray) -> np.ndarray:
        target.value = row
        problem.solve(solver=cvxpy.CLARABEL)
        assert fitted.value is not None
        return fitted.value

    return solve


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print(f"{'what':<44} {'ours':>12}  {'peer':<28} {'peer':>12}  {'ratio':>9}  difference")
    monotone(rng)
    laplacian(rng)
    training_step(rng)


if __name__ == "__main__":
    main()
