"""The surrogate, its gradient and its error against the full singular value decomposition."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.jepa_guidance.error_bound import expected_residual, surrogate_error
from assay.methods.jepa_guidance.jacobian import JacobianProducts, differentiable_encoder, full_jacobian
from assay.methods.jepa_guidance.randomised_svd import (
    leading_subspace,
    random_directions,
    score_from_rows,
    score_with_gradient,
    surrogate_reference,
    surrogate_with_gradient,
    with_redraws,
)
from assay.methods.jepa_guidance.singular_values import singular_values

K = 9


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_map(width: int = 64, pixels: int = 256, layers: int = 3) -> nn.Module:
    """The random GELU map on which the figures of the tests were measured."""
    torch.manual_seed(0)
    sizes = [pixels] * layers + [width]
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*parts[:-1]).double().requires_grad_(False)


def points(batch: int, pixels: int = 256, seed: int = 1) -> Tensor:
    return torch.randn(batch, pixels, dtype=torch.float64, generator=seeded(seed))


def gradient_of_leading(f: nn.Module, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Value and gradient through the singular values of the whole Jacobian, by torch.func and autograd."""
    point = x.clone().requires_grad_()
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: f(row[None])[0]))(point)
    values = torch.linalg.svdvals(jacobian)[:, :k].log().sum(dim=1)
    return values.detach(), torch.autograd.grad(values.sum(), point)[0]


def leading_basis(f: nn.Module, x: Tensor, k: int) -> Tensor:
    return torch.linalg.svd(full_jacobian(f, x, copies=64)).U[:, :, :k]


def in_basis(f: nn.Module, x: Tensor, basis: Tensor, k: int) -> Tensor:
    with differentiable_encoder():
        products = JacobianProducts(f, x, copies=basis.shape[2])
        values, _, _ = score_from_rows(products.rows(basis.permute(2, 0, 1)), k, 1e-8)
        return products.gradient(values.sum())


def surrogate(f: nn.Module, x: Tensor, *, k: int = K, p: int = 2, q: int = 2, seed: int = 0):
    with differentiable_encoder():
        return surrogate_with_gradient(f, x, k=k, oversample=p, power_iters=q, generator=seeded(seed))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def cosine(found: Tensor, expected: Tensor) -> Tensor:
    return nn.functional.cosine_similarity(found.flatten(1), expected.flatten(1))


def test_at_the_exact_subspace_the_gradient_through_q_vanishes():
    f, x = random_map(), points(2)
    _, expected = gradient_of_leading(f, x, K)
    assert relative(in_basis(f, x, leading_basis(f, x, K), K), expected) < 1e-8


def test_the_gradient_approaches_the_exact_one_with_power_iterations():
    f, x = random_map(), points(2)
    _, expected = gradient_of_leading(f, x, K)
    mean = {
        q: torch.stack([cosine(surrogate(f, x, q=q, seed=s).gradients, expected) for s in range(4)]).mean()
        for q in (0, 2, 8)
    }
    assert mean[0] < mean[2] < mean[8]
    assert mean[2] >= 0.95
    assert mean[8] >= 0.99


@pytest.mark.parametrize("seed", [0, 1])
def test_with_all_rows_any_orthonormal_basis_gives_the_exact_gradient(seed):
    f, x = random_map(width=8, pixels=20), points(2, 20)
    _, expected = gradient_of_leading(f, x, 8)
    basis = torch.linalg.qr(torch.randn(2, 8, 8, dtype=torch.float64, generator=seeded(seed))).Q
    assert relative(in_basis(f, x, basis, 8), expected) < 1e-8


def test_the_closed_form_of_the_full_scores_gradient():
    """For k = d the gradient of log det is tr(J^+ dJ)."""
    f, x = random_map(width=6, pixels=10), points(3, 10)
    with differentiable_encoder():
        found = score_with_gradient(f, x, 6)
    jacobian = full_jacobian(f, x, copies=6)
    inverse = torch.linalg.pinv(jacobian)
    hessian = torch.func.vmap(torch.func.jacfwd(torch.func.jacrev(lambda row: f(row[None])[0])))(x)
    expected = torch.einsum("bnd,bdnm->bm", inverse, hessian)
    torch.testing.assert_close(found.gradients, expected, rtol=1e-8, atol=1e-10)
    values = torch.linalg.svdvals(jacobian).log().sum(dim=1)
    torch.testing.assert_close(found.values, values, rtol=1e-9, atol=1e-9)


def test_the_batched_path_is_the_reference():
    f, x = random_map(), points(3)
    found = surrogate(f, x)
    directions = random_directions(K + 2, x, seeded())
    values, gradients = surrogate_reference(f, x, k=K, power_iters=2, directions=directions)
    torch.testing.assert_close(found.values, values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.gradients, gradients, rtol=1e-8, atol=1e-10)
    assert found.usable.all()


def test_a_sample_depends_neither_on_its_batch_mates_nor_on_its_place():
    f, x = random_map(width=16, pixels=24).float(), points(5, 24).float()
    together = surrogate(f, x, k=4)
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = surrogate(f, x[order], k=4)
    torch.testing.assert_close(permuted.values, together.values[order], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(permuted.gradients, together.gradients[order], rtol=1e-4, atol=1e-5)
    for i in range(5):
        alone = surrogate(f, x[i : i + 1], k=4)
        torch.testing.assert_close(alone.values[0], together.values[i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(alone.gradients[0], together.gradients[i], rtol=1e-4, atol=1e-5)


def test_a_warm_start_finds_the_subspace_with_fewer_iterations():
    f, x = random_map(), points(2)
    exact = leading_basis(f, x, K)
    near = leading_basis(f, x + 0.01 * points(2, seed=7), K + 2)

    def missed(start: Tensor | None, q: int) -> float:
        with differentiable_encoder():
            products = JacobianProducts(f, x, copies=K + 2)
            directions = None if start is not None else random_directions(K + 2, x, seeded())
            basis = leading_subspace(products, q, directions=directions, basis=start)
        return float((exact - basis @ (basis.mT @ exact)).norm())

    assert missed(near, 1) < missed(None, 2)


@settings(max_examples=30, deadline=None)
@given(
    rank=st.integers(1, 8),
    width=st.integers(8, 12),
    pixels=st.integers(8, 30),
    seed=st.integers(0, 999),
)
def test_singular_values_of_a_projection_interlace(rank, width, pixels, seed):
    matrix = torch.randn(1, width, pixels, dtype=torch.float64, generator=seeded(seed))
    basis = torch.linalg.qr(torch.randn(1, width, rank, dtype=torch.float64, generator=seeded(seed + 1))).Q
    projected = singular_values(basis.mT @ matrix)
    whole = singular_values(matrix)[:, : projected.shape[1]]
    assert (projected <= whole * (1 + 1e-6)).all()


@settings(max_examples=20, deadline=None)
@given(
    k=st.integers(1, 6),
    p=st.integers(0, 4),
    q=st.integers(0, 3),
    decay=st.floats(0.05, 2.0),
    seed=st.integers(0, 99),
)
def test_the_error_of_the_range_finder_is_never_negative(k, p, q, decay, seed):
    spectrum = torch.exp(-decay * torch.arange(12, dtype=torch.float64))
    left, right = (
        torch.linalg.qr(torch.randn(2, n, 12, dtype=torch.float64, generator=seeded(seed + n))).Q
        for n in (12, 30)
    )
    matrix = left @ torch.diag(spectrum) @ right.mT
    found = surrogate_error(matrix, torch.zeros(2, 30), k=k, oversample=p, power_iters=q, seed=seed)
    assert (found.e_rsvd > -1e-9).all()
    torch.testing.assert_close(found.js, found.js_surrogate + found.e_rsvd + found.e_trunc)
    torch.testing.assert_close(found.js, spectrum.clamp_min(1e-6).log().sum().expand(2))


def test_the_error_falls_with_iterations_and_directions_and_stays_in_the_bound():
    f, x = random_map(), points(1)
    jacobian = full_jacobian(f, x, copies=64)

    def mean(p: int, q: int) -> tuple[float, float, float]:
        found = [
            surrogate_error(jacobian, x, k=K, oversample=p, power_iters=q, seed=seed) for seed in range(50)
        ]
        errors = float(torch.stack([one.e_rsvd for one in found]).mean())
        residual = float(torch.stack([one.residual for one in found]).mean())
        return errors, residual, float(found[0].expected_residual)

    by_iterations = [mean(2, q)[0] for q in (0, 1, 2, 4)]
    assert by_iterations == sorted(by_iterations, reverse=True)
    assert mean(9, 2)[0] < by_iterations[2]
    for p, q in ((2, 0), (2, 1), (2, 2), (9, 0), (9, 2)):
        _, residual, bound = mean(p, q)
        assert residual <= bound
        # A bound that is far from the truth would test nothing.
        assert bound < 60 * residual


def test_the_bound_on_the_residual_against_its_formula():
    spectrum = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.5]], dtype=torch.float64)
    k, p, q = 2, 2, 1
    tail = sum(s ** (2 * (2 * q + 1)) for s in (2.0, 1.0, 0.5)) ** 0.5
    first = (1 + (k / (p - 1)) ** 0.5) * 2.0 ** (2 * q + 1)
    expected = (first + 2.718281828459045 * (k + p) ** 0.5 / p * tail) ** (1 / (2 * q + 1))
    torch.testing.assert_close(
        expected_residual(spectrum, k, p, q), torch.tensor([expected], dtype=torch.float64)
    )
    assert expected_residual(spectrum, k, 1, q).isnan().all()
    assert not expected_residual(spectrum, 5, 2, q).any()


def test_small_singular_values_keep_their_digits():
    spectrum = 10.0 ** torch.arange(0, -10, -1, dtype=torch.float64)
    left = torch.linalg.qr(torch.randn(10, 10, dtype=torch.float64, generator=seeded(3))).Q
    right = torch.linalg.qr(torch.randn(40, 10, dtype=torch.float64, generator=seeded(4))).Q
    matrix = left @ torch.diag(spectrum) @ right.T
    for wide in (matrix, matrix.T):
        found = singular_values(wide[None])[0]
        torch.testing.assert_close(found.log(), spectrum.log(), rtol=1e-6, atol=1e-6)
    broken = torch.stack([matrix, torch.full_like(matrix, torch.nan)])
    assert singular_values(broken).isnan().tolist() == [[False] * 10, [True] * 10]


def test_equal_singular_values_have_a_finite_gradient():
    """An orthogonal Jacobian at 0: all singular values are equal there."""
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=seeded(5))).Q

    def f(x: Tensor) -> Tensor:
        return (x + 0.1 * x**2) @ rotation.T

    x = torch.zeros(1, 6, dtype=torch.float64)
    with differentiable_encoder():
        found = score_with_gradient(f, x, 6)
    # log det of diag(1 + 0.2 x): the gradient at 0 is 0.2.
    torch.testing.assert_close(found.gradients, torch.full_like(x, 0.2))


def test_a_sample_that_is_not_finite_leaves_the_others_alone():
    f, x = random_map(width=16, pixels=24), points(3, 24)
    broken = x.clone()
    broken[1, 0] = torch.nan
    found, expected = surrogate(f, broken, k=4), surrogate(f, x, k=4)
    assert found.usable.tolist() == [True, False, True]
    assert found.values.isnan().tolist() == [False, True, False]
    assert not found.gradients[1].any()
    torch.testing.assert_close(found.gradients[[0, 2]], expected.gradients[[0, 2]])


def test_failed_samples_are_drawn_again_and_only_they():
    f, x = random_map(width=16, pixels=24), points(3, 24)
    good = surrogate(f, x, k=4)
    asked = []

    def attempt(index: Tensor, number: int):
        asked.append((index.tolist(), number))
        usable = torch.ones(len(index), dtype=torch.bool)
        if number < 2:
            usable[index == 1] = False
        return good._replace(
            values=good.values[index],
            gradients=good.gradients[index] + number,
            basis=good.basis[index],
            usable=usable,
            largest=good.largest[index],
        )

    found, repeated = with_redraws(attempt, 3, 3)
    assert asked == [([0, 1, 2], 0), ([1], 1), ([1], 2)]
    assert repeated == 2
    assert found.usable.all()
    torch.testing.assert_close(found.gradients[1], good.gradients[1] + 2)
    torch.testing.assert_close(found.gradients[0], good.gradients[0])


def test_a_rank_that_the_jacobian_cannot_have_is_refused():
    f, x = random_map(width=8, pixels=24), points(1, 24)
    with pytest.raises(InputError, match="k \\+ oversample is 10, more than the 8 singular values"):
        surrogate(f, x, k=8)
    with pytest.raises(InputError, match="more than the 6 singular values"):
        surrogate_error(torch.zeros(1, 9, 6), torch.zeros(1, 6), k=5, oversample=2, power_iters=0, seed=0)
