"""Linear feedback: the identity behind it, its grouping, and its faults."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.proteus.ldlq import block_ldl, damped, from_sequences, ldlq, to_sequences


def second_moment(n: int, seed: int, tokens: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens or 3 * n, n, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-1, 1, n, dtype=torch.float64) + x[:, :1]
    return x.T @ x / len(x)


def coarse(index: int, target: torch.Tensor) -> torch.Tensor:
    return target.round()


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(1, 20), st.sampled_from([1, 4, 16]), st.integers(0, 10**6))
def test_proxy_error_is_the_sum_over_blocks(blocks, block, seed):
    n = 16 * blocks
    hessian = second_moment(n, seed)
    feedback = block_ldl(hessian, 0.01, block=block)
    assert feedback.lower is not None
    weights = torch.randn(8, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rounded_off = {}

    def quantize(index: int, target: torch.Tensor) -> torch.Tensor:
        rounded_off[index] = target - target.round()
        return target.round()

    error = weights - ldlq(weights, feedback, quantize)
    metric = damped(hessian, 0.01)
    factor = torch.linalg.cholesky(metric)
    total = 0.0
    for index, residual in rounded_off.items():
        at = slice(index * block, (index + 1) * block)
        total += float((residual @ factor[at, at]).square().sum())
    assert float((error @ metric * error).sum()) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("block", [1, 16])
def test_factor_reproduces_the_second_moment(block):
    hessian = second_moment(160, 0)
    feedback = block_ldl(hessian, 0.01, block=block)
    assert feedback.lower is not None
    lower = feedback.lower + torch.eye(160, dtype=torch.float64)
    middle = torch.linalg.solve(lower, torch.linalg.solve(lower, damped(hessian, 0.01)).T)
    # What is left in the middle is block diagonal.
    mask = torch.block_diag(*[torch.ones(block, block, dtype=torch.bool)] * (160 // block))
    assert float(middle[~mask].abs().max()) < 1e-9 * float(middle.abs().max())
    assert float(feedback.lower[mask].abs().max()) == 0
    assert float(feedback.lower.triu(1).abs().max()) == 0


@pytest.mark.parametrize("n", [16, 128, 144, 400])
@pytest.mark.parametrize("block", [1, 16])
def test_grouping_changes_nothing(n, block):
    hessian = second_moment(n, n)
    weights = torch.randn(5, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    feedback = block_ldl(hessian, 0.01, block=block)
    assert feedback.lower is not None
    plain = torch.empty_like(weights)
    for start in range(n - block, -1, -block):
        end = start + block
        fed_back = (weights[:, end:] - plain[:, end:]) @ feedback.lower[end:, start:end]
        plain[:, start:end] = (weights[:, start:end] + fed_back).round()
    assert torch.equal(ldlq(weights, feedback, coarse), plain)


def test_feedback_lowers_the_proxy_error():
    hessian = second_moment(256, 2)
    weights = torch.randn(32, 256, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    errors = {}
    for name, rounded in (
        ("nearest", weights.round()),
        ("blocks", ldlq(weights, block_ldl(hessian, 0.01), coarse)),
        ("columns", ldlq(weights, block_ldl(hessian, 0.01, block=1), coarse)),
    ):
        error = weights - rounded
        errors[name] = float((error @ hessian * error).sum())
    assert errors["columns"] < errors["blocks"] < 0.8 * errors["nearest"]


def test_identity_gives_no_feedback():
    weights = torch.randn(4, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    feedback = block_ldl(torch.eye(64, dtype=torch.float64), 0.01)
    assert torch.equal(ldlq(weights, feedback, coarse), weights.round())


def test_damping_is_raised_until_it_helps():
    hessian = torch.eye(32, dtype=torch.float64)
    hessian[0, 0] = -0.1
    mean = float(hessian.diagonal().mean())
    feedback = block_ldl(hessian, 0.01)
    assert feedback.damping == 0.16
    assert 0.08 * mean < 0.1 < 0.16 * mean
    assert "damping raised from 0.01 to 0.16" in feedback.flags[0]


def test_no_feedback_when_no_damping_helps():
    hessian = torch.eye(32, dtype=torch.float64)
    hessian[0, 0] = -20.0
    feedback = block_ldl(hessian, 0.01)
    assert feedback.lower is None
    assert "rounded without feedback" in feedback.flags[0]
    weights = torch.randn(4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ldlq(weights, feedback, coarse), weights.round())


def test_zero_second_moment_is_flagged():
    feedback = block_ldl(torch.zeros(32, 32), 0.01)
    assert feedback.lower is None
    assert "is zero" in feedback.flags[0]


def test_rank_deficient_second_moment_needs_only_damping():
    feedback = block_ldl(second_moment(64, 0, tokens=5), 0.01)
    assert feedback.lower is not None
    assert feedback.flags == ()


def test_without_damping_a_singular_moment_is_damped_a_little():
    feedback = block_ldl(torch.ones(32, 32, dtype=torch.float64), 0.0)
    assert feedback.lower is not None
    assert 0 < feedback.damping < 1e-3


def test_sequences_are_column_major_and_backwards():
    matrix = torch.arange(32 * 48).reshape(32, 48)
    sequences = to_sequences(matrix)
    assert sequences.shape == (2, 3, 256)
    for row, column in ((0, 0), (5, 9), (15, 15)):
        assert int(sequences[1, 2, 255 - (16 * column + row)]) == int(matrix[16 + row, 32 + column])
    assert torch.equal(from_sequences(sequences), matrix)
