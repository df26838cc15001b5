"""Euclidean projections onto the sets that metric-valued responses live in, with their Jacobians.

A weighted mean with negative weights can leave the set of monotone quantile functions, of graph Laplacians or
of positive semi-definite matrices; the weighted Fréchet mean is then the projection of that mean onto the
set. Every
projection here comes twice: as a plain function of arrays, and as a `..._with_pullback` function that also
returns the map from a gradient with respect to the output to a gradient with respect to the input, for
training through it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int
from numba import njit

from assay.errors import InputError

Pullback = Callable[[np.ndarray], np.ndarray]

# Edge weights are solved for until the projected gradient is this small beside the largest linear term.
EDGE_TOLERANCE = 1e-12
ACTIVE_SET_STEPS = 30
GRADIENT_STEPS = 20_000


# ---------------------------------------------------------------------------------------------- monotone rows


@njit
def _pool_adjacent_violators(values, fitted, blocks):
    rows, columns = values.shape
    level = np.empty(columns)
    length = np.empty(columns)
    for row in range(rows):
        top = -1
        for column in range(columns):
            top += 1
            level[top] = values[row, column]
            length[top] = 1.0
            while top > 0 and level[top - 1] > level[top]:
                total = length[top - 1] + length[top]
                level[top - 1] = (length[top - 1] * level[top - 1] + length[top] * level[top]) / total
                length[top - 1] = total
                top -= 1
        position = 0
        for block in range(top + 1):
            for _ in range(int(length[block])):
                fitted[row, position] = level[block]
                blocks[row, position] = block
                position += 1


@njit
def _average_blocks(values, blocks, averaged):
    rows, columns = values.shape
    for row in range(rows):
        start = 0
        while start < columns:
            end = start
            total = 0.0
            while end < columns and blocks[row, end] == blocks[row, start]:
                total += values[row, end]
                end += 1
            for column in range(start, end):
                averaged[row, column] = total / (end - start)
            start = end


def _monotone_fit(
    values: Float[np.ndarray, "m k"],
) -> tuple[Float[np.ndarray, "m k"], Int[np.ndarray, "m k"]]:
    values = np.ascontiguousarray(values, dtype=np.float64)
    fitted = np.empty_like(values)
    blocks = np.empty(values.shape, dtype=np.int32)
    _pool_adjacent_violators(values, fitted, blocks)
    return fitted, blocks


def project_monotone(values: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "m k"]:
    """The nearest non-decreasing sequence to every row, by pooling adjacent violators (Ayer et al. 1955)."""
    return _monotone_fit(values)[0]


def monotone_with_pullback(values: Float[np.ndarray, "m k"]) -> tuple[Float[np.ndarray, "m k"], Pullback]:
    """`project_monotone` and its pullback.

    The projection replaces each pooled block by its mean, so its Jacobian, symmetric and idempotent, averages
    a gradient over the same blocks. Where two blocks touch with equal levels the projection has no
    derivative, and the blocks are treated as separate.
    """
    fitted, blocks = _monotone_fit(values)

    def pullback(gradient: np.ndarray) -> np.ndarray:
        averaged = np.empty_like(fitted)
        _average_blocks(np.ascontiguousarray(gradient, dtype=np.float64), blocks, averaged)
        return averaged

    return fitted, pullback


# ------------------------------------------------------------------------------------------- graph Laplacians


def laplacian_from_edges(edges: Float[np.ndarray, "*m q q"]) -> Float[np.ndarray, "*m q q"]:
    """The Laplacians, degree matrix minus `edges`, of symmetric edge weights with a zero diagonal."""
    laplacian = 0.0 - edges
    diagonal = np.arange(edges.shape[-1])
    laplacian[..., diagonal, diagonal] = edges.sum(axis=-1)
    return laplacian


def project_laplacian(
    matrices: Float[np.ndarray, "m q q"], max_weight: float | None = None
) -> Float[np.ndarray, "m q q"]:
    """The nearest graph Laplacian, in the Frobenius norm, to every matrix.

    The set is {L = L', L1 = 0, -max_weight <= L_kl <= 0 for k != l} (Zhou and Müller 2022). Written in the
    edge weights, the projection is a least-squares problem with bounds, which is solved to rounding error.

    Raises:
        InputError: the solver stalled, which needs entries that differ by more than float64 can hold.
    """
    return laplacian_from_edges(_nearest_edges(np.asarray(matrices, dtype=np.float64), max_weight))


def laplacian_with_pullback(
    matrices: Float[np.ndarray, "m q q"], max_weight: float | None = None
) -> tuple[Float[np.ndarray, "m q q"], Pullback]:
    """`project_laplacian` and its pullback.

    Edges at a bound stay there under a small change and the others, F, solve a linear system. So the exact
    Jacobian is B_F H_FF^-1 B_F' with H = B'B and the matrix B of the map from edges to Laplacians.
    """
    matrices = np.asarray(matrices, dtype=np.float64)
    upper = np.inf if max_weight is None else max_weight
    edges = _nearest_edges(matrices, max_weight)
    # An edge that lies on its bound by chance, without pressing on it, counts as fixed.
    free = (edges > 0.0) & (edges < upper) & _off_diagonal(edges.shape[-1])

    def pullback(gradient: np.ndarray) -> np.ndarray:
        return laplacian_from_edges(_solve_free(free, _edge_terms(gradient)))

    return laplacian_from_edges(edges), pullback


def _off_diagonal(size: int) -> Bool[np.ndarray, "q q"]:
    return ~np.eye(size, dtype=bool)


def _pair_sums(nodes: Float[np.ndarray, "m q"]) -> Float[np.ndarray, "m q q"]:
    """The sum over its two nodes for every edge, exactly symmetric."""
    return nodes[..., :, None] + nodes[..., None, :]


def _edge_terms(matrices: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
    """<A, dL/dw_kl> for every edge: A_kk + A_ll - A_kl - A_lk (zero for k = l)."""
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    return _pair_sums(diagonal) - (matrices + np.swapaxes(matrices, -1, -2))


def _curvature(edges: Float[np.ndarray, "m q q"]) -> Float[np.ndarray, "m q q"]:
    """H w for H = 2I + NN' with the unsigned incidence matrix N.

    The entry <L(e), L(f)> of H is 4, 1 or 0 for two edges that are equal, share one node, or share none.
    """
    degree = edges.sum(axis=-1)
    product = 2.0 * edges + _pair_sums(degree)
    product[..., ~_off_diagonal(edges.shape[-1])] = 0.0
    return product


def _solve_free(
    free: Bool[np.ndarray, "m q q"], right: Float[np.ndarray, "m q q"]
) -> Float[np.ndarray, "m q q"]:
    """Solve H_FF x = right_F; Woodbury turns the system over edges into one over the q nodes."""
    right = np.where(free, right, 0.0)
    nodes = free.astype(np.float64)
    diagonal = np.arange(free.shape[-1])
    nodes[..., diagonal, diagonal] = 2.0 + free.sum(axis=-1)
    potential = np.linalg.solve(nodes, right.sum(axis=-1)[..., None])[..., 0]
    return np.where(free, 0.5 * (right - _pair_sums(potential)), 0.0)


def _nearest_edges(
    matrices: Float[np.ndarray, "m q q"], max_weight: float | None
) -> Float[np.ndarray, "m q q"]:
    upper = np.inf if max_weight is None else float(max_weight)
    size = matrices.shape[-1]
    off_diagonal = _off_diagonal(size)
    linear = _edge_terms(matrices)
    # Without bounds the problem has a closed form. Where that solution lies in the box it is the answer: the
    # usual case, and always so when the matrices are means of Laplacians under weights >= 0.
    edges = _solve_free(np.broadcast_to(off_diagonal, matrices.shape), linear)
    slack = EDGE_TOLERANCE * np.abs(linear).max(axis=(-2, -1), initial=0.0)[:, None, None]
    outside = ((edges < -slack) | (edges > upper + slack)).any(axis=(-2, -1))
    edges = np.clip(edges, 0.0, upper)
    outside &= np.isfinite(edges).all(axis=(-2, -1))
    if outside.any():
        edges[outside] = _bounded_edges(linear[outside], edges[outside], upper)
    return edges


def _bounded_edges(
    linear: Float[np.ndarray, "m q q"], edges: Float[np.ndarray, "m q q"], upper: float
) -> Float[np.ndarray, "m q q"]:
    """Minimise w'Hw/2 - linear'w over 0 <= w <= upper, from a first guess.

    The primal-dual active-set method (Hintermüller, Ito and Kunisch 2002) guesses which edges are at a bound,
    solves for the others exactly and corrects the guess; it ends at the exact solution after a handful of
    steps. Nothing rules out that it cycles, so accelerated projected gradients finish what it leaves open.
    """
    tolerance = EDGE_TOLERANCE * np.abs(linear).max(axis=(-2, -1))
    off_diagonal = _off_diagonal(linear.shape[-1])
    edges = edges.copy()
    lower_active, upper_active = (edges <= 0.0) & off_diagonal, (edges >= upper) & off_diagonal
    rows = np.arange(len(edges))
    for _ in range(ACTIVE_SET_STEPS):
        at_bound = np.where(upper_active, upper, 0.0)
        free = off_diagonal & ~lower_active & ~upper_active
        trial = at_bound + _solve_free(free, linear[rows] - _curvature(at_bound))
        gradient = _curvature(trial) - linear[rows]
        edges[rows] = np.clip(trial, 0.0, upper)
        moved = trial - np.clip(trial - gradient, 0.0, upper)
        # A multiplier counts in units of the edge weights: 4 is the diagonal of H.
        target = trial - 0.25 * gradient
        unfinished = np.abs(moved).max(axis=(-2, -1)) > tolerance[rows]
        lower_active = ((target <= 0.0) & off_diagonal)[unfinished]
        upper_active = ((target >= upper) & off_diagonal)[unfinished]
        rows = rows[unfinished]
        if not rows.size:
            return edges
    edges[rows] = _accelerated_gradient(linear[rows], edges[rows], upper, tolerance[rows])
    return edges


def _accelerated_gradient(
    linear: Float[np.ndarray, "m q q"],
    edges: Float[np.ndarray, "m q q"],
    upper: float,
    tolerance: Float[np.ndarray, " m"],
) -> Float[np.ndarray, "m q q"]:
    """Nesterov's projected gradients with constant momentum: the eigenvalues of H lie between 2 and 2q."""
    root = np.sqrt(linear.shape[-1])
    momentum = (root - 1.0) / (root + 1.0)
    ahead = edges
    for _ in range(GRADIENT_STEPS):
        following = np.clip(ahead - (_curvature(ahead) - linear) / (2.0 * root**2), 0.0, upper)
        ahead = following + momentum * (following - edges)
        edges = following
        moved = edges - np.clip(edges - (_curvature(edges) - linear), 0.0, upper)
        residual = np.abs(moved).max(axis=(-2, -1))
        if (residual <= tolerance).all():
            return edges
    raise InputError(
        f"the projection onto graph Laplacians left a residual of {residual.max():.3g} after "
        f"{GRADIENT_STEPS} steps (entries up to {np.abs(linear).max():.3g}); rescale the edge weights"
    )
