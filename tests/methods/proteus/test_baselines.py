"""Rounding to a grid, GPTQ against brute-force optimal brain quantization, and LDLQ with other codes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus.baselines import gptq, grid_of, ldlq_code, ldlq_scalar, rtn, table_bits
from assay.methods.proteus.codes import CODES, gaussian_table, hyb, lloyd_max, mul1, mulbal
from assay.methods.proteus.compensation import proxy_error
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.layer_quantization import LayerSettings, dequantize, prepare_inputs, quantize_layer
from assay.methods.proteus.ldlq import damped


def problem(m: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = 0.05 * torch.randn(m, n, generator=generator)
    x = torch.randn(4 * n, n, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-0.7, 0.7, n, dtype=torch.float64) + 2 * x[:, n // 2, None]
    return weight, x.T @ x / len(x)


# --- grids


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(1e-3, 1e3))
def test_narrowed_grid_is_at_least_as_good_as_the_full_range(seed, bits, scale):
    weights = scale * torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
    low, high = weights.amin(1, keepdim=True), weights.amax(1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    full = low + step * ((weights - low) / step).round()
    found = grid_of(weights, bits).round(weights, bits)
    ours, theirs = ((one - weights).square().sum(1) for one in (found, full))
    # Half precision of the two stored numbers may cost a little.
    assert bool((ours <= 1.01 * theirs).all())
    assert all(len(row.unique()) <= 2**bits for row in found)


def test_weights_on_a_grid_are_kept():
    weights = torch.tensor([[-1.0, -0.5, 0.0, 0.5], [2.0, 2.25, 2.5, 2.75], [3.0, 3.0, 3.0, 3.0]])
    assert torch.equal(grid_of(weights, 2).round(weights, 2), weights)


def test_rtn_uses_a_grid_for_every_group():
    weight, _ = problem(32, 160)
    found = rtn(weight, bits=2, group=64)
    for start in (0, 64, 128):
        part = weight[:, start : start + 64]
        assert torch.equal(found.weight[:, start : start + 64], grid_of(part, 2).round(part, 2))
    # Three groups in 160 columns, with two half-precision numbers each.
    assert found.bits_per_weight == pytest.approx(2 + 32 * 3 / 160)
    assert rtn(weight, bits=2, group=32).bits_per_weight == pytest.approx(3)


# --- GPTQ


def brute_force_obq(weight: torch.Tensor, hessian: torch.Tensor, grids: dict, bits: int) -> torch.Tensor:
    """Quantize columns in order; after each, re-solve exactly for the columns that are still free."""
    original, current = weight.double(), weight.double().clone()
    rounded = torch.zeros_like(original)
    n = weight.shape[1]
    for column in range(n):
        if column in grids:
            grid = grids[column] = grid_of(
                current[:, column : column + len_of(grids, column, n)].float(), bits
            )
        rounded[:, column] = grid.round(current[:, column, None].float(), bits)[:, 0].double()
        fixed, free = slice(0, column + 1), slice(column + 1, n)
        if column + 1 < n:
            # min over the free columns of |(W - Q) x|^2 given the errors that are fixed.
            error = original[:, fixed] - rounded[:, fixed]
            response = torch.linalg.solve(hessian[free, free], hessian[free, fixed] @ error.T).T
            current[:, free] = original[:, free] + response
    return rounded


def len_of(grids: dict, column: int, n: int) -> int:
    return min([start for start in grids if start > column], default=n) - column


@pytest.mark.parametrize(("n", "group"), [(16, 16), (16, 4), (16, 6), (12, 8)])
@pytest.mark.parametrize("bits", [2, 3])
def test_gptq_is_optimal_brain_quantization_in_order(monkeypatch, n, group, bits):
    monkeypatch.setattr("assay.methods.proteus.layer_quantization.SMALLEST", 1)
    monkeypatch.setattr("assay.methods.proteus.baselines._COLUMNS_AT_ONCE", 5)
    weight, hessian = problem(10, n, seed=n + group + bits)
    found = gptq(weight, hessian, bits=bits, group=group, damp=0.01).weight
    expected = brute_force_obq(weight, damped(hessian, 0.01), dict.fromkeys(range(0, n, group)), bits)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


def test_gptq_lowers_the_proxy_error():
    weight, hessian = problem(64, 320)
    nearest, found = rtn(weight), gptq(weight, hessian)
    assert found.bits_per_weight == nearest.bits_per_weight == pytest.approx(2.5)
    errors = [proxy_error(weight, one.weight, hessian.float()) for one in (found, nearest)]
    assert errors[0] < 0.7 * errors[1]
    assert gptq(weight, hessian, group=128).bits_per_weight == pytest.approx(2 + 32 * 3 / 320)


def test_gptq_without_correlations_is_rtn():
    weight, _ = problem(32, 192)
    assert torch.equal(gptq(weight, torch.eye(192)).weight, rtn(weight).weight)


def test_gptq_drops_weights_of_dead_inputs():
    weight, hessian = problem(32, 64)
    hessian[7, :] = hessian[:, 7] = 0
    found = gptq(weight, hessian).weight
    assert float(found[:, 7].abs().max()) < float(weight.abs().max()) / 2
    assert torch.isfinite(found).all()


def test_gptq_of_a_rank_deficient_moment():
    weight, _ = problem(32, 64)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(gptq(weight, x.T @ x).weight).all()
    assert torch.isfinite(gptq(weight, x.T @ x, damp=1e-9).weight).all()


# --- LDLQ with other codes

SMALL = LayerSettings(window=8)


def test_scalar_code_without_correlations_reaches_the_lloyd_max_error():
    weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    found = ldlq_scalar(weight, torch.eye(256), name="a", settings=SMALL)
    # Max (1960): 0.1175; the scale is searched on loud tiles, hence the slack.
    assert float((found.weight - weight).square().mean()) == pytest.approx(0.1175, rel=0.03)
    assert found.bits_per_weight == pytest.approx(2 + (16 * 512 + 32) / 256**2)
    levels = lloyd_max(2)
    assert levels.tolist() == pytest.approx([-1.5104, -0.4528, 0.4528, 1.5104], abs=1e-4)


def test_scalar_feedback_goes_column_by_column():
    weight, hessian = problem(64, 128)
    prepared = prepare_inputs(hessian, group="a", settings=SMALL, block=1)
    found = ldlq_scalar(weight, prepared, name="a", settings=SMALL)
    again = ldlq_scalar(weight, hessian, name="a", settings=SMALL)
    assert torch.equal(found.weight, again.weight)
    with pytest.raises(InputError, match="blocks of 16; 128 channels and blocks of 1 are needed"):
        ldlq_scalar(weight, prepare_inputs(hessian, group="a", settings=SMALL), name="a", settings=SMALL)


@pytest.mark.parametrize("name", CODES)
def test_trellis_codes_beat_the_scalar_one(name):
    # With windows of less than 10 bits the hash of HYB is a poor one.
    weight, hessian = problem(64, 96)
    scalar = ldlq_scalar(weight, hessian, name="a", settings=SMALL)
    found = ldlq_code(weight, hessian, CODES[name](10), name="a", settings=SMALL)
    errors = [proxy_error(weight, one.weight, hessian.float()) for one in (found, scalar)]
    assert errors[0] < errors[1]
    extra = table_bits(CODES[name](10)) / (64 * 96)
    assert found.bits_per_weight == pytest.approx(scalar.bits_per_weight + extra)


def test_tables_are_counted():
    assert table_bits(mul1(8)) == 0
    assert table_bits(hyb(8)) == 512 * 2 * 16
    assert table_bits(gaussian_table(8)) == 256 * 16


def test_our_code_without_choice_or_compensation_is_the_same_pipeline():
    weight, hessian = problem(64, 96)
    generator = Generator(0x849988CF)
    settings = LayerSettings(window=8, pool=(generator,), compensate=False)
    layer, report = quantize_layer(weight, hessian, name="a", settings=settings)
    found = ldlq_code(weight, hessian, mulbal(generator, 8), name="a", settings=settings)
    torch.testing.assert_close(found.weight, dequantize(layer, 8, 2), rtol=1e-4, atol=1e-6)
    # A record of the generator and a second affine number.
    assert layer.bits_per_weight - found.bits_per_weight == pytest.approx((256 + 32) / (64 * 96))
    assert report.proxy_error > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w, h: rtn(w, bits=0), "bits 0 and group 64"),
        (lambda w, h: rtn(w, group=0), "group 0"),
        (lambda w, h: rtn(w * torch.nan), "NaN"),
        (lambda w, h: gptq(w, h[:5, :5]), r"of 64 channels, not \(5, 5\)"),
        (lambda w, h: gptq(w, h * torch.nan), "finite second moment"),
        (lambda w, h: gptq(w, torch.eye(64) - 100 * (1 - torch.eye(64))), "not positive definite"),
        (lambda w, h: ldlq_code(w, h[:32, :32], mul1(8), name="a"), "for 32 channels"),
        (lambda w, h: ldlq_scalar(w[:8], h, name="model.up"), r"model\.up is 8 x 64"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(*problem(32, 64))
