"""Scales and affine maps that repair a quantized layer: exact minimisers that never do harm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.proteus.compensation import (
    INPUT_REGULARISATION,
    bias_correction,
    compensate,
    input_scales,
    output_scales,
    proxy_error,
    refit_affine,
)


def problem(seed: int, m: int = 24, n: int = 32, noise: float = 0.3, dtype: torch.dtype = torch.float64):
    """A weight, a noisy copy with wrong scales, and a second moment with strong correlations."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(m, n, generator=generator, dtype=torch.float64)
    x = torch.randn(2 * n, n, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-1, 1, n, dtype=torch.float64) + x[:, :1]
    quantized = weight + noise * torch.randn(m, n, generator=generator, dtype=torch.float64)
    quantized *= 1 + 0.3 * torch.randn(m, 1, generator=generator, dtype=torch.float64)
    return weight.to(dtype), quantized.to(dtype), (x.T @ x / len(x)).to(dtype)


def test_proxy_error_is_the_relative_error_of_the_output():
    generator = torch.Generator().manual_seed(0)
    weight, quantized = torch.randn(2, 6, 8, generator=generator, dtype=torch.float64)
    x = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    expected = (x @ (weight - quantized).T).square().sum() / (x @ weight.T).square().sum()
    assert proxy_error(weight, quantized, x.T @ x) == pytest.approx(float(expected), rel=1e-12)


def test_proxy_error_of_a_zero_weight():
    zero, one, hessian = torch.zeros(4, 4), torch.ones(4, 4), torch.eye(4)
    assert proxy_error(zero, zero, hessian) == 0
    assert proxy_error(zero, one, hessian) == float("inf")
    assert proxy_error(one, zero, hessian) == pytest.approx(1)


def test_rows_scaled_by_a_factor_are_repaired_exactly():
    weight, _, hessian = problem(1)
    quantized = 0.7 * weight
    step = output_scales(weight - quantized, quantized, quantized @ hessian)
    torch.testing.assert_close(step.scales, torch.full((24,), 1 / 0.7, dtype=torch.float64))
    assert proxy_error(weight, quantized * step.scales[:, None], hessian) < 1e-20


@pytest.mark.parametrize(("factor", "bound"), [(0.1, 2.0), (5.0, 0.5), (-1.0, 0.5)])
def test_output_scales_stay_within_bounds(factor, bound):
    weight, _, hessian = problem(2)
    quantized = factor * weight
    step = output_scales(weight - quantized, quantized, quantized @ hessian)
    assert torch.equal(step.scales, torch.full((24,), bound, dtype=torch.float64))
    assert step.gain > 0


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.3, 2.0]))
def test_a_step_gains_what_it_says_and_never_loses(seed, noise):
    weight, quantized, hessian = problem(seed, noise=noise)
    reference = float((weight @ hessian * weight).sum())
    before = proxy_error(weight, quantized, hessian)
    rows = output_scales(weight - quantized, quantized, quantized @ hessian)
    after_rows = proxy_error(weight, quantized * rows.scales[:, None], hessian)
    assert rows.gain >= 0
    assert before - after_rows == pytest.approx(rows.gain / reference, abs=1e-12)
    columns = input_scales((weight - quantized) @ hessian, quantized, hessian)
    after_columns = proxy_error(weight, quantized * columns.scales, hessian)
    assert columns.gain >= 0
    assert before - after_columns == pytest.approx(columns.gain / reference, rel=1e-6, abs=1e-10)


def test_input_scales_minimise_the_regularised_error():
    weight, quantized, hessian = problem(3)
    system = (quantized.T @ quantized) * hessian
    regularisation = INPUT_REGULARISATION * float(system.diagonal().mean())

    def objective(scales: torch.Tensor) -> torch.Tensor:
        error = weight - quantized * scales
        return (error @ hessian * error).sum() + regularisation * (scales - 1).square().sum()

    found = input_scales((weight - quantized) @ hessian, quantized, hessian).scales
    gradient = torch.autograd.functional.jacobian(objective, found)
    assert isinstance(gradient, torch.Tensor)
    assert float(gradient.abs().max()) < 1e-9 * float(objective(found))


def test_scales_of_nothing_are_one():
    zero, hessian = torch.zeros(4, 6), torch.eye(6)
    weight = torch.ones(4, 6)
    assert output_scales(weight, zero, zero).scales.tolist() == [1.0] * 4
    assert input_scales(weight, zero, hessian).scales.tolist() == [1.0] * 6
    assert input_scales(weight, weight, torch.zeros(6, 6)).gain == 0


def test_affine_refit_is_the_least_squares_solution():
    weight, codes, hessian = problem(4)
    generator = torch.Generator().manual_seed(4)
    constant = (
        torch.randn(24, generator=generator, dtype=torch.float64),
        torch.randn(32, generator=generator, dtype=torch.float64),
    )
    factor = torch.linalg.cholesky(hessian)
    design = torch.stack([(codes @ factor).flatten(), (torch.outer(*constant) @ factor).flatten()], dim=1)
    expected = torch.linalg.lstsq(design, (weight @ factor).flatten()[:, None]).solution[:, 0]
    found = refit_affine(weight, codes, codes @ hessian, constant, hessian)
    assert found == pytest.approx(expected.tolist(), rel=1e-9)


def test_affine_refit_without_a_solution():
    weight, codes, hessian = problem(5)
    ones = (torch.ones(24, dtype=torch.float64), torch.ones(32, dtype=torch.float64))
    zero = torch.zeros_like(codes)
    assert refit_affine(weight, zero, zero, ones, hessian) is None
    same = torch.outer(*ones)
    assert refit_affine(weight, same, same @ hessian, ones, hessian) is None


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.02, 0.5, 3.0]), st.sampled_from(["32", "64"]))
def test_compensation_never_increases_the_error(seed, noise, precision):
    dtype = {"32": torch.float32, "64": torch.float64}[precision]
    weight, codes, hessian = problem(seed, noise=noise, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    constant = (
        torch.randn(24, generator=generator, dtype=dtype),
        torch.randn(32, generator=generator).to(dtype),
    )
    affine = (1.0, 0.05)
    fitted = compensate(weight, codes, constant, affine, hessian)
    before = proxy_error(weight, affine[0] * codes + affine[1] * torch.outer(*constant), hessian)
    repaired = fitted.alpha * codes + fitted.beta * torch.outer(*constant)
    after = proxy_error(weight, fitted.outputs[:, None] * repaired * fitted.inputs, hessian)
    slack = 1e-5 * before if precision == "32" else 1e-12
    assert after <= before + slack
    assert all(b <= a + slack for a, b in zip(fitted.errors, fitted.errors[1:], strict=False))
    assert fitted.errors[0] == pytest.approx(before, rel=1e-4, abs=1e-9)
    assert fitted.errors[-1] == pytest.approx(after, rel=1e-3, abs=1e-6)


def test_compensation_repairs_scales_of_both_sides():
    weight, _, hessian = problem(6)
    generator = torch.Generator().manual_seed(7)
    rows = 1 + 0.2 * torch.rand(24, generator=generator, dtype=torch.float64)
    columns = 1 + 0.2 * torch.rand(32, generator=generator, dtype=torch.float64)
    codes = weight / rows[:, None] / columns
    nothing = (torch.zeros(24, dtype=torch.float64), torch.zeros(32, dtype=torch.float64))
    fitted = compensate(weight, codes, nothing, (1.0, 0.0), hessian, rounds=50)
    assert fitted.errors[-1] < 0.01 * fitted.errors[0]


def test_bias_correction_removes_the_mean_error():
    generator = torch.Generator().manual_seed(8)
    weight, quantized = torch.randn(2, 5, 9, generator=generator, dtype=torch.float64)
    x = torch.randn(40, 9, generator=generator, dtype=torch.float64) + 1
    correction = bias_correction(weight, quantized, x.mean(0))
    difference = x @ quantized.T + correction - x @ weight.T
    assert float(difference.mean(0).abs().max()) < 1e-12
