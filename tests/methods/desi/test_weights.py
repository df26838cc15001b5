"""Local-linear and global weights against their defining identities and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.desi.spaces import SPD, Wasserstein1D
from assay.methods.desi.weights import (
    KERNELS,
    global_weights,
    local_linear_weights,
    local_linear_weights_nd,
    median_gap,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensor(values) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def loop_weights(z: np.ndarray, target: float, h: float) -> np.ndarray:
    """One row, from the moments of the kernel as the definition writes them."""
    k = np.exp(-0.5 * ((z - target) / h) ** 2)
    d = z - target
    mu = [np.mean(k * d**j) for j in range(3)]
    s = k * (mu[2] - mu[1] * d) / (mu[0] * mu[2] - mu[1] ** 2)
    return s / len(z)


def test_rows_agree_with_the_definition():
    z, targets = rng().normal(size=40), np.linspace(-1.5, 1.5, 7)
    W = local_linear_weights(tensor(z), tensor(targets), 0.4).weights.numpy()
    expected = np.stack([loop_weights(z, target, 0.4) for target in targets])
    np.testing.assert_allclose(W, expected, atol=1e-12)
    assert (W < 0).any(), "local-linear weights of a boundary target are partly negative"


@settings(deadline=None, max_examples=40)
@given(
    z=st.lists(st.floats(-3, 3), min_size=5, max_size=30, unique=True),
    target=st.floats(-3, 3),
    h=st.floats(0.3, 3),
)
def test_rows_sum_to_one_and_are_unbiased_for_lines(z, target, h):
    z = np.array(z)
    result = local_linear_weights(tensor(z), tensor([target]), h)
    W = result.weights.numpy()[0]
    assert W.sum() == pytest.approx(1, abs=1e-10)
    if not result.kernel_rows[0] and not result.nearest_rows[0]:
        assert abs(W @ (z - target)) < 1e-10 * max(1, np.abs(W).sum())
        assert W @ (2 - 3 * z) == pytest.approx(2 - 3 * target, abs=1e-9 * max(1, np.abs(W).sum()))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_every_kernel_reproduces_lines(kernel):
    z, targets = np.sort(rng().uniform(-1, 1, 60)), np.linspace(-0.9, 0.9, 9)
    W = local_linear_weights(tensor(z), tensor(targets), 0.5, kernel=kernel).weights.numpy()
    np.testing.assert_allclose(W @ (1 + 2 * z), 1 + 2 * targets, atol=1e-10)
    # The kernels differ, so the weights do.
    others = [k for k in KERNELS if k != kernel]
    for other in others:
        V = local_linear_weights(tensor(z), tensor(targets), 0.5, kernel=other).weights.numpy()
        assert np.abs(V - W).max() > 1e-4


@pytest.mark.parametrize(
    ("kernel", "at_half"),
    [
        ("gauss", np.exp(-0.125)),
        ("rect", 1.0),
        ("epan", 0.75),
        ("quar", 0.5625),
        ("gausvar", np.exp(-0.125) * 1.1875),
    ],
)
def test_kernels_have_their_textbook_values(kernel, at_half):
    # A shape of 1 at the centre up to the kernel's constant: the ratio to the centre identifies it.
    ratio = KERNELS[kernel](tensor(0.5)) / KERNELS[kernel](tensor(0.0))
    centre = 1.25 if kernel == "gausvar" else 1.0
    assert float(ratio) == pytest.approx(at_half / centre)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(InputError, match="kernel 'box' is unknown: choose one of gauss, rect"):
        local_linear_weights(tensor([0, 1]), tensor([0]), 1.0, kernel="box")  # pyright: ignore[reportArgumentType]


def test_excluded_point_is_as_if_it_were_dropped():
    z = rng().normal(size=25)
    W = local_linear_weights(tensor(z), tensor(z), 0.5, excluded=torch.arange(25)).weights.numpy()
    assert np.abs(np.diag(W)).max() == 0
    for i in (0, 7, 24):
        expected = local_linear_weights(tensor(np.delete(z, i)), tensor(z[[i]]), 0.5).weights.numpy()[0]
        np.testing.assert_allclose(np.delete(W[i], i), expected, atol=1e-13)


def test_counts_are_repeated_points_and_leaving_one_out_leaves_all_copies():
    z, counts = rng().normal(size=12), rng(1).integers(1, 4, size=12)
    repeated = np.repeat(z, counts)
    W = local_linear_weights(tensor(z), tensor([0.2]), 0.6, counts=tensor(counts)).weights.numpy()[0]
    expected = local_linear_weights(tensor(repeated), tensor([0.2]), 0.6).weights.numpy()[0]
    np.testing.assert_allclose(W, [expected[repeated == value].sum() for value in z], atol=1e-12)
    own = local_linear_weights(tensor(z), tensor(z), 0.6, counts=tensor(counts), excluded=torch.arange(12))
    assert np.abs(np.diag(own.weights.numpy())).max() == 0


def test_equal_points_fall_back_to_a_local_constant():
    result = local_linear_weights(tensor([1, 1, 1, 5]), tensor([1.0]), 0.2)
    assert result.kernel_rows.tolist() == [True]
    assert result.nearest_rows.tolist() == [False]
    np.testing.assert_allclose(result.weights.numpy()[0], [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-12)


def test_targets_without_neighbours_fall_back_to_the_nearest():
    result = local_linear_weights(tensor([0, 1, 2]), tensor([100.0, 1.0]), 0.5)
    assert result.nearest_rows.tolist() == [True, False]
    np.testing.assert_array_equal(result.weights.numpy()[0], [0, 0, 1])
    # The point itself, or a point that was never drawn, is no neighbour.
    z = tensor([0.0, 50.0, 51.0])
    alone = local_linear_weights(z, z, 0.5, excluded=torch.arange(3), counts=tensor([1, 0, 1]))
    np.testing.assert_array_equal(alone.weights.numpy()[0], [0, 0, 1])


def test_weights_do_not_depend_on_the_unit_of_the_index():
    z = rng().normal(size=30)
    one = local_linear_weights(tensor(z), tensor([0.1, 2.9]), 0.3)
    other = local_linear_weights(tensor(1e4 * z), tensor([1e3, 2.9e4]), 3e3)
    np.testing.assert_allclose(one.weights.numpy(), other.weights.numpy(), atol=1e-9)
    assert one.kernel_rows.tolist() == other.kernel_rows.tolist()


@pytest.mark.parametrize("excluded", [None, torch.arange(8)])
def test_derivatives_of_the_weights(excluded):
    z = tensor(rng().normal(size=8)).requires_grad_()
    h = tensor(0.7).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, h: local_linear_weights(z, z, h, excluded=excluded).weights, (z, h)
    )


def test_derivative_through_weights_and_isotonic_projection():
    generator = rng(3)
    z = tensor(np.linspace(-1.5, 1.5, 9) + 0.1 * generator.normal(size=9))
    # The spread shrinks with the index, so that extrapolating to the right turns quantile functions around.
    spread = (1 - 0.55 * z.numpy())[:, None] * generator.uniform(0.5, 1, size=(9, 6))
    Y = np.sort(np.linspace(-1, 1, 6) * spread, axis=1)
    z, h = z.requires_grad_(), tensor(0.6).requires_grad_()
    targets = tensor([-1.0, 1.6, 1.9])
    space = Wasserstein1D(grid_size=6)

    def loss(z, h):
        return space.loss(tensor(Y), local_linear_weights(z, targets, h).weights, tensor(Y[:3]))

    with torch.no_grad():
        unprojected = local_linear_weights(z, targets, h).weights.numpy() @ Y
    assert (np.diff(unprojected, axis=1) < 0).any(), "the projection must be active for this test to test it"
    assert torch.autograd.gradcheck(loss, (z, h))


def test_derivative_through_weights_and_log_cholesky():
    generator = rng(4)
    A = generator.normal(size=(8, 3, 3))
    Y = A @ A.transpose(0, 2, 1) + np.eye(3)
    z, h = tensor(generator.normal(size=8)).requires_grad_(), tensor(0.6).requires_grad_()

    def loss(z, h):
        weights = local_linear_weights(z, z, h, excluded=torch.arange(8)).weights
        return SPD(metric="log-cholesky").loss(tensor(Y), weights, tensor(Y))

    assert torch.autograd.gradcheck(loss, (z, h))


def test_several_predictors_reduce_to_one():
    z, targets = rng().normal(size=30), np.linspace(-1, 1, 5)
    one = local_linear_weights(tensor(z), tensor(targets), 0.5).weights.numpy()
    nd = local_linear_weights_nd(tensor(z[:, None]), tensor(targets[:, None]), 0.5).weights.numpy()
    np.testing.assert_allclose(nd, one, atol=1e-12)


def test_several_predictors_agree_with_weighted_least_squares():
    X, targets, h = rng().normal(size=(60, 3)), rng(1).normal(size=(4, 3)) / 2, np.array([0.8, 1.0, 1.3])
    y = rng(2).normal(size=60)
    W = local_linear_weights_nd(tensor(X), tensor(targets), tensor(h)).weights.numpy()
    for weights, target in zip(W, targets, strict=True):
        k = np.exp(-0.5 * (((X - target) / h) ** 2).sum(1))
        design = np.column_stack([np.ones(60), X - target])
        beta = np.linalg.solve(design.T @ (k[:, None] * design), design.T @ (k * y))
        assert weights @ y == pytest.approx(beta[0], abs=1e-10)


def test_several_predictors_without_neighbours():
    X = tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    result = local_linear_weights_nd(X, tensor([[40, 40], [0.5, 0.5]]), 0.5)
    assert result.nearest_rows.tolist() == [True, False]
    np.testing.assert_array_equal(result.weights.numpy()[0], [0, 0, 0, 1])
    np.testing.assert_allclose(result.weights.numpy()[1], 0.25, atol=1e-12)


def test_a_direction_without_variation_has_no_slope():
    # The second predictor is constant, so its covariance is singular.
    X = np.column_stack([rng().normal(size=20), np.ones(20)])
    W = local_linear_weights_nd(tensor(X), tensor([[0.3, 1.2]]), 0.7).weights.numpy()[0]
    assert W.sum() == pytest.approx(1)
    assert W @ X[:, 0] == pytest.approx(0.3)
    assert np.abs(W).max() < 1


def test_global_weights_are_the_hat_matrix_of_least_squares():
    X, X_out = rng().normal(size=(30, 4)), rng(1).normal(size=(6, 4))
    W = global_weights(X, X_out)
    design, design_out = (np.column_stack([np.ones(len(A)), A]) for A in (X, X_out))
    np.testing.assert_allclose(W, design_out @ np.linalg.pinv(design), atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)


def test_median_gap_ignores_ties():
    assert median_gap(np.array([0.0, 1.0, 1.0, 1.0, 4.0, 4.5])) == 1.0
    assert median_gap(np.ones(4)) == 0.0
