"""Projections onto monotone sequences and graph Laplacians, against scikit-learn, SciPy and cvxpy."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import lsq_linear
from sklearn.isotonic import isotonic_regression

from assay.errors import InputError
from assay.methods.desi import projection
from assay.methods.desi.projection import (
    laplacian_from_edges,
    laplacian_with_pullback,
    monotone_with_pullback,
    project_laplacian,
    project_monotone,
)
from assay.methods.desi.spaces.autograd import differentiable

FEW = settings(derandomize=True, deadline=None, max_examples=40)
ROWS = arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(-50, 50, width=32)
)


def quadratic_program(matrix: np.ndarray, max_weight: float | None) -> np.ndarray:
    """The nearest Laplacian as a convex program over whole matrices."""
    q = len(matrix)
    laplacian = cvxpy.Variable((q, q), symmetric=True)
    off_diagonal = ~np.eye(q, dtype=bool)
    constraints = [cvxpy.sum(laplacian, axis=1) == 0, laplacian[off_diagonal] <= 0]
    if max_weight is not None:
        constraints.append(laplacian[off_diagonal] >= -max_weight)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(laplacian - matrix)), constraints)
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(laplacian.value)


def bounded_least_squares(matrix: np.ndarray, max_weight: float | None) -> np.ndarray:
    """The nearest Laplacian from an explicit design matrix of edge Laplacians."""
    q = len(matrix)
    columns = []
    for k in range(q):
        for l in range(k + 1, q):  # noqa: E741
            edge = np.zeros(q)
            edge[k], edge[l] = 1.0, -1.0
            columns.append(np.outer(edge, edge).ravel())
    design = np.stack(columns, axis=1)
    upper = np.inf if max_weight is None else max_weight
    fit = lsq_linear(design, matrix.ravel(), bounds=(0.0, upper), method="bvls", tol=1e-14)
    return (design @ fit.x).reshape(q, q)


# ------------------------------------------------------------------------------------------- monotone rows


@FEW
@given(ROWS)
def test_monotone_projection_equals_isotonic_regression(values):
    expected = np.stack([isotonic_regression(row) for row in values])
    np.testing.assert_allclose(project_monotone(values), expected, atol=1e-10)


@FEW
@given(ROWS)
def test_monotone_projection_is_idempotent_and_keeps_the_mean(values):
    fitted = project_monotone(values)
    assert (np.diff(fitted, axis=1) >= 0).all()
    np.testing.assert_array_equal(project_monotone(fitted), fitted)
    np.testing.assert_allclose(fitted.mean(axis=1), values.mean(axis=1), atol=1e-10)


def test_monotone_projection_equals_quadratic_program():
    values = np.random.default_rng(0).normal(size=(3, 20)).cumsum(axis=1)
    for row in values:
        fitted = cvxpy.Variable(20)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(fitted - row)), [cvxpy.diff(fitted) >= 0]).solve(
            solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12
        )
        np.testing.assert_allclose(project_monotone(row[None])[0], fitted.value, atol=1e-6)


def test_monotone_pullback_averages_over_blocks():
    fitted, pullback = monotone_with_pullback(np.array([[1.0, 4.0, 2.0, 0.0, 5.0]]))
    np.testing.assert_allclose(fitted, [[1.0, 2.0, 2.0, 2.0, 5.0]])
    np.testing.assert_allclose(pullback(np.array([[1.0, 3.0, 6.0, 0.0, 7.0]])), [[1.0, 3.0, 3.0, 3.0, 7.0]])


def test_monotone_projection_passes_gradcheck():
    x = torch.tensor(np.random.default_rng(1).normal(size=(3, 9)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: differentiable(monotone_with_pullback, x), x)


def test_derivatives_keep_type_and_device_of_the_input():
    x = torch.tensor([[2.0, 1.0]], dtype=torch.float32, requires_grad=True)
    y = differentiable(monotone_with_pullback, x)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


# ---------------------------------------------------------------------------------------- graph Laplacians


@pytest.mark.parametrize("max_weight", [None, 0.7])
def test_laplacian_projection_equals_quadratic_program(max_weight):
    matrices = np.random.default_rng(2).normal(size=(6, 6, 6))  # not even symmetric
    expected = np.stack([quadratic_program(matrix, max_weight) for matrix in matrices])
    np.testing.assert_allclose(project_laplacian(matrices, max_weight), expected, atol=1e-6)


@pytest.mark.parametrize("max_weight", [None, 0.7])
@pytest.mark.parametrize("q", [2, 3, 9])
def test_laplacian_projection_equals_bounded_least_squares(q, max_weight):
    matrices = np.random.default_rng(q).normal(size=(20, q, q))
    expected = np.stack([bounded_least_squares(matrix, max_weight) for matrix in matrices])
    np.testing.assert_allclose(project_laplacian(matrices, max_weight), expected, atol=1e-10)


def test_clipping_and_rebuilding_is_not_the_projection():
    # The short cut that the projection replaces; if the two agreed, the solver would be for nothing.
    matrix = np.random.default_rng(3).normal(size=(1, 6, 6))
    matrix = matrix + np.swapaxes(matrix, 1, 2)
    clipped = laplacian_from_edges(np.clip(-matrix, 0, None) * ~np.eye(6, dtype=bool))
    exact = project_laplacian(matrix)
    assert np.linalg.norm(exact - matrix) < np.linalg.norm(clipped - matrix) - 0.1


@FEW
@given(
    arrays(np.float64, (2, 5, 5), elements=st.floats(-10, 10, width=32)),
    st.one_of(st.none(), st.floats(0.1, 5)),
)
def test_laplacian_projection_lands_in_the_set_and_is_idempotent(matrices, max_weight):
    projected = project_laplacian(matrices, max_weight)
    off_diagonal = ~np.eye(5, dtype=bool)
    np.testing.assert_array_equal(projected, np.swapaxes(projected, 1, 2))
    np.testing.assert_allclose(projected.sum(axis=2), 0, atol=1e-12 * 50)
    assert (projected[:, off_diagonal] <= 0).all()
    if max_weight is not None:
        assert (projected[:, off_diagonal] >= -max_weight).all()
    np.testing.assert_allclose(project_laplacian(projected, max_weight), projected, atol=1e-10)


def test_accelerated_gradients_reach_the_same_projection(monkeypatch):
    matrices = np.random.default_rng(4).normal(size=(10, 8, 8))
    expected = project_laplacian(matrices, 0.5)
    monkeypatch.setattr(projection, "ACTIVE_SET_STEPS", 0)
    np.testing.assert_allclose(project_laplacian(matrices, 0.5), expected, atol=1e-10)


def test_laplacian_projection_reports_a_solver_that_stalls(monkeypatch):
    monkeypatch.setattr(projection, "ACTIVE_SET_STEPS", 0)
    monkeypatch.setattr(projection, "GRADIENT_STEPS", 1)
    with pytest.raises(InputError, match=r"left a residual of .* rescale the edge weights"):
        project_laplacian(np.random.default_rng(5).normal(size=(1, 8, 8)))


@pytest.mark.parametrize("max_weight", [None, 0.7])
def test_laplacian_projection_passes_gradcheck(max_weight):
    x = torch.tensor(np.random.default_rng(6).normal(size=(3, 5, 5)), requires_grad=True)
    projected = project_laplacian(x.detach().numpy(), max_weight)
    edges = -projected[:, ~np.eye(5, dtype=bool)]
    assert (edges == 0).any()  # some edges are at a bound
    assert torch.autograd.gradcheck(
        lambda x: differentiable(lambda array: laplacian_with_pullback(array, max_weight), x), x
    )


def test_projections_hand_a_nan_on():
    matrices = np.zeros((2, 3, 3))
    matrices[1, 0, 0] = np.nan
    assert np.isnan(project_laplacian(matrices)[1]).any()
    np.testing.assert_array_equal(project_laplacian(matrices)[0], 0)
    assert np.isnan(project_monotone(np.array([[0.0, np.nan, 1.0]]))).any()
