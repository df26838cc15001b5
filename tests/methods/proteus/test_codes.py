"""Codes of the literature: their formulas, bit by bit, and the optimal scalar quantizer."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from assay.methods.proteus import codes
from assay.methods.proteus.codes import CODES, Code, lloyd_max, mulbal, unit_affine
from assay.methods.proteus.generators import Generator


def half(bits: int) -> float:
    """A half-precision number from its bits, by the definition of the format (normal and subnormal)."""
    sign, exponent, mantissa = bits >> 15, bits >> 10 & 31, bits & 1023
    fraction = mantissa / 1024 + (exponent > 0)
    return (-1) ** sign * fraction * 2.0 ** (max(exponent, 1) - 15)


@pytest.mark.parametrize("name", list(CODES))
@pytest.mark.parametrize("window", [8, 12, 16])
def test_all_codes_have_mean_zero_and_variance_one(name, window):
    code = CODES[name](window)
    assert code.name == name
    assert code.window == window
    assert len(code.values) == 1 << window
    assert code.values.dtype == torch.float32
    assert abs(float(code.values.double().mean())) < 1e-6
    assert abs(float(code.values.double().std(correction=0)) - 1.0) < 1e-6


def test_codes_know_their_trellis():
    trellis = CODES["1mad"](12).trellis(3, length=64)
    assert (trellis.window, trellis.bits, trellis.values_per_state, trellis.length) == (12, 3, 1, 64)
    assert CODES["hyb"](12).trellis(2).values_per_state == 2


def test_unit_affine_standardizes_a_generator():
    generator = Generator(0x9E3779B1, 12345, 0, (1, 1, 1, 1))
    alpha, beta = unit_affine(generator, 10)
    values = alpha * generator.table(10).double() + beta
    torch.testing.assert_close(values.float(), mulbal(generator, 10).values, rtol=0, atol=1e-6)
    assert abs(alpha * 147.8 - 1.0) < 0.05
    assert abs(beta + 510 * alpha) < 0.1


@pytest.mark.parametrize(
    ("name", "multiplier", "addend"), [("3inst", 89226354, 64248484), ("mcg", 0xCBAC1FED, 0)]
)
def test_sums_of_half_precision_numbers(name, multiplier, addend):
    sums = []
    for state in range(1 << 16):
        word = (state * multiplier + addend) % (1 << 32)
        word = (word & 0x8FFF8FFF) ^ 0x3B603B60
        sums.append(half(word >> 16) + half(word & 0xFFFF))
    published = np.array(sums)
    assert abs(published.std() - 1.2437) < 0.001
    values = CODES[name](16).values.numpy()
    np.testing.assert_allclose(values * published.std() + published.mean(), published, rtol=0, atol=1e-6)


def test_half_agrees_with_the_machine():
    for bits in (0x3B60, 0xBB60, 0x0001, 0x7BFF, 0x3C00):
        assert half(bits) == struct.unpack("<e", struct.pack("<H", bits))[0]


def test_mul1_and_one_mad_are_byte_sums():
    for make, multiplier, addend in ((codes.one_mad, 34038481, 76625530), (codes.mul1, 0x83DCD12D, 0)):
        sums = np.array(
            [sum(((s * multiplier + addend) % 2**32).to_bytes(4, "little")) for s in range(1 << 12)]
        )
        expected = (sums - sums.mean()) / sums.std()
        np.testing.assert_allclose(make(12).values.numpy(), expected, rtol=0, atol=1e-6)


def test_hyb_looks_rows_up_and_mirrors_the_first_coordinate():
    table = codes._hyb_table()
    assert table.shape == (512, 2)
    code = codes.hyb(16)
    raw = []
    for state in range(1 << 16):
        hashed = state * (state + 1)
        first, second = table[hashed >> 6 & 511].tolist()
        raw.append((-first if hashed >> 15 & 1 else first, second))
    raw = np.array(raw)
    expected = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(code.values.numpy(), expected, rtol=0, atol=1e-5)


def test_the_table_of_hyb_is_nearly_optimal():
    """The least error a value of n centres in the plane tends to G 8 pi / n, G = 5 / (36 sqrt 3) (Zador)."""
    pairs = torch.randn(40_000, 2, generator=torch.Generator().manual_seed(3))
    error = torch.cdist(pairs, codes._hyb_table()).min(dim=1).values.square().mean() / 2
    optimum = 5 / (36 * math.sqrt(3)) * 8 * math.pi / 512
    assert 0.97 * optimum < float(error) < 1.1 * optimum


def test_gaussian_tables_depend_on_the_seed_only():
    assert torch.equal(codes.gaussian_table(10, 4).values, codes.gaussian_table(10, 4).values)
    assert not torch.equal(codes.gaussian_table(10, 4).values, codes.gaussian_table(10, 5).values)


def test_lloyd_max_levels():
    np.testing.assert_allclose(
        lloyd_max(1).numpy(), [-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)], atol=1e-10
    )
    # Max (1960), table 1.
    np.testing.assert_allclose(lloyd_max(2).numpy(), [-1.510, -0.4528, 0.4528, 1.510], atol=5e-4)
    eight = [0.2451, 0.7560, 1.344, 2.152]
    np.testing.assert_allclose(lloyd_max(3).numpy()[4:], eight, atol=5e-4)


def test_lloyd_max_is_stationary():
    levels = lloyd_max(4).numpy()
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    for level, low, high in zip(levels, edges[:-1], edges[1:], strict=True):
        mass = stats.norm.cdf(high) - stats.norm.cdf(low)
        moment, _ = integrate.quad(lambda x: x * stats.norm.pdf(x), low, high)
        assert level == pytest.approx(moment / mass, abs=1e-8)


def test_a_code_is_a_plain_value():
    values = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert Code("mine", values).window == 2
    assert torch.equal(codes.standardized("mine", 5 + 3 * values).values, values)
