"""Finite fields, Hadamard matrices, fast transforms and signs."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus.finite_field import difference_characters, prime_power
from assay.methods.proteus.hadamard import LARGEST_ORDER, has_paley, paley, paley_factors, sylvester
from assay.methods.proteus.incoherence import Rotation, Transform, padded, signs, transform_for

ODD_PRIME_POWERS = (3, 5, 7, 9, 11, 13, 25, 27, 49, 81, 121, 125, 243, 343)


# --- finite fields


def test_prime_powers_are_recognised():
    found = [q for q in range(130) if prime_power(q)]
    # Sequence A246655 of the On-Line Encyclopedia of Integer Sequences.
    assert found[:25] == [
        *(2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32, 37, 41, 43, 47, 49, 53, 59)
    ]
    assert prime_power(343) == (7, 3)
    assert prime_power(28) is None


@pytest.mark.parametrize("p", [3, 5, 7, 13, 101])
def test_characters_of_a_prime_field_are_legendre_symbols(p):
    expected = [pow(a, (p - 1) // 2, p) for a in range(p)]
    expected = [-1 if value == p - 1 else value for value in expected]
    assert difference_characters(p)[:, 0].tolist() == expected


@pytest.mark.parametrize("q", ODD_PRIME_POWERS)
def test_jacobsthal_matrix_has_its_defining_properties(q):
    matrix = difference_characters(q).astype(np.int64)
    assert (matrix @ matrix.T == q * np.eye(q) - np.ones((q, q))).all()
    assert (matrix.sum(0) == 0).all()
    # -1 is a square exactly when q = 1 mod 4.
    assert ((matrix if q % 4 == 1 else -matrix) == matrix.T).all()


@pytest.mark.parametrize("q", [1, 2, 8, 15])
def test_no_characters_without_an_odd_prime_power(q):
    with pytest.raises(ValueError, match=f"{q} is not an odd prime power"):
        difference_characters(q)


# --- Hadamard matrices


@pytest.mark.parametrize("order", [4, 12, 20, 24, 28, 36, 44, 52, 60, 108, 148, 344])
def test_paley_matrices_are_hadamard(order):
    matrix = paley(order).astype(np.int64)
    assert matrix.shape == (order, order)
    assert (np.abs(matrix) == 1).all()
    assert (matrix @ matrix.T == order * np.eye(order)).all()


def test_orders_of_paley_below_two_hundred():
    # The known list of orders that Paley's constructions and Sylvester's doubling do not reach.
    def reached(order: int) -> bool:
        return order in (1, 2) or has_paley(order) or (order % 2 == 0 and reached(order // 2))

    assert [n for n in range(4, 201, 4) if not reached(n)] == [92, 116, 156, 172, 184, 188]


def test_no_paley_matrix_of_another_order():
    with pytest.raises(ValueError, match="no Paley matrix of order 92"):
        paley(92)


def test_sylvester_matrices_are_hadamard():
    for power in range(6):
        matrix = sylvester(power).astype(np.int64)
        assert (matrix @ matrix.T == 2**power * np.eye(2**power)).all()


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 200).map(lambda i: 2 * i + 1), st.integers(0, 10))
def test_factors_make_up_the_dimension(odd, spare):
    factors = paley_factors(odd, spare)
    if factors is not None:
        product = math.prod(factors)
        assert product % odd == 0
        rest = (odd << spare) // product
        assert rest * product == odd << spare
        assert rest & (rest - 1) == 0
        assert all(has_paley(order) and order <= LARGEST_ORDER for order in factors)


# --- transforms


@pytest.mark.parametrize(
    ("size", "kind", "orders"),
    [
        (4096, "sylvester", ()),
        (192, "paley", (12,)),
        (576, "paley", (36,)),
        (1536, "paley", (12,)),
        (5120, "paley", (20,)),
        (11008, "paley", (344,)),
        (13824, "paley", (108,)),
        (14336, "paley", (28,)),
        (28672, "paley", (28,)),
        (29568, "paley", (84, 44)),
        (23 * 64, "paley", (368,)),
        (179 * 64, "block", ()),
        (179 * 16, "orthogonal", ()),
    ],
)
def test_kind_by_dimension(size, kind, orders):
    transform = transform_for(size)
    assert (transform.kind, transform.size, transform.orders) == (kind, size, orders)


@pytest.mark.parametrize("size", [1, 16, 48, 64, 192, 448, 576, 1536])
def test_fast_transform_equals_the_dense_one(size):
    transform = transform_for(size)
    dense = transform.dense()
    torch.testing.assert_close(dense @ dense.T, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-12)
    x = torch.randn(3, 2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(transform.apply(x), x @ dense.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(transform.inverse(x), x @ dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["block", "orthogonal"])
def test_fast_transform_equals_the_dense_one_for_a_given_kind(kind):
    transform = transform_for(320, kind)
    dense = transform.dense()
    torch.testing.assert_close(dense @ dense.T, torch.eye(320, dtype=torch.float64), rtol=0, atol=1e-6)
    x = torch.randn(4, 320, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(transform.apply(x), x @ dense.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(transform.inverse(x), x @ dense, rtol=0, atol=1e-12)


def test_block_transform_mixes_within_blocks_only():
    transform = transform_for(179 * 64)
    x = torch.zeros(179 * 64)
    x[70] = 1
    y = transform.apply(x)
    assert y.nonzero()[:, 0].tolist() == list(range(64, 128))
    assert y[64:128].abs().allclose(torch.tensor(1 / 8))


@pytest.mark.parametrize("size", [64, 192, 576, 1536, 11008, 13824, 29568])
def test_transforms_are_orthogonal(size):
    transform = transform_for(size)
    x = torch.randn(4, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = transform.apply(x)
    torch.testing.assert_close(y @ y.T, x @ x.T, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(transform.inverse(y), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(transform.apply(transform.inverse(x)), x, rtol=0, atol=1e-12)
    # Every entry of a full Hadamard matrix has the same magnitude: an outlier is spread evenly.
    spike = torch.zeros(size, dtype=torch.float64)
    spike[size // 3] = 1
    assert transform.apply(spike).abs().allclose(torch.tensor(size**-0.5, dtype=torch.float64))


def test_transform_is_differentiable_wherever_it_was_first_used():
    transform = transform_for(20 * 32)
    with torch.inference_mode():
        transform.apply(torch.ones(640, dtype=torch.float64))
    x = torch.ones(640, dtype=torch.float64, requires_grad=True)
    weights = torch.arange(640.0, dtype=torch.float64)
    (transform.apply(x) @ weights).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, transform.inverse(weights))


def test_configuration_round_trip():
    for size in (64, 576, 29568, 179 * 64, 80 * 11):
        transform = transform_for(size)
        again = Transform.from_config(transform.to_config(), transform.matrix)
        assert again == transform
        x = torch.randn(size, generator=torch.Generator().manual_seed(2))
        assert torch.equal(again.apply(x), transform.apply(x))


def test_random_orthogonal_matrix_depends_on_the_seed():
    one, same, other = (transform_for(16 * 5, "orthogonal", seed=seed).matrix for seed in (1, 1, 2))
    assert one is not None
    assert same is not None
    assert other is not None
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transform_for(0), "positive dimension, not 0"),
        (lambda: transform_for(64, "fourier"), "'fourier' is not a kind"),
        (lambda: transform_for(576, "sylvester"), "order 576 does not exist"),
        (lambda: transform_for(16 * 179, "paley"), "dimension of 2864"),
        (lambda: Transform("paley", 576, (44,)), "do not make up a dimension of 576"),
        (lambda: Transform("orthogonal", 48, matrix=torch.eye(4)), r"shape \(4, 4\), not \(3, 3\)"),
        (lambda: Transform.from_config({"kind": "paley"}), "does not describe a transform"),
        (lambda: Transform.from_config({"kind": "paley", "size": "many"}), "does not describe a transform"),
    ],
)
def test_bad_transforms_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_another_dimension_is_refused():
    with pytest.raises(ValueError, match="for 64 channels, not 32"):
        transform_for(64).apply(torch.ones(32))
    with pytest.raises(ValueError, match="has not been loaded"):
        Transform("orthogonal", 48).apply(torch.ones(48))


# --- signs


def test_signs_depend_on_seed_name_and_side_only():
    first = signs(1000, seed=0, name="model.layers.0.q_proj", side="input")
    assert set(first.tolist()) == {-1.0, 1.0}
    assert torch.equal(first, signs(1000, seed=0, name="model.layers.0.q_proj", side="input"))
    assert torch.equal(first[:37], signs(37, seed=0, name="model.layers.0.q_proj", side="input"))
    for other in (
        signs(1000, seed=1, name="model.layers.0.q_proj", side="input"),
        signs(1000, seed=0, name="model.layers.1.q_proj", side="input"),
        signs(1000, seed=0, name="model.layers.0.q_proj", side="output"),
    ):
        # Independent signs agree in half of the places; five standard deviations are 79.
        assert abs(float((first == other).sum()) - 500) < 80
    assert abs(float(first.sum())) < 160


def test_signs_are_the_same_on_every_machine():
    # The format is fixed: the bits of SHAKE-256, most significant first, 1 for minus.
    digest = hashlib.shake_256(b"3\x00input\x00model.layers.0.mlp.up_proj").digest(2)
    expected = [1 - 2 * (byte >> (7 - bit) & 1) for byte in digest for bit in range(8)][:11]
    assert signs(11, seed=3, name="model.layers.0.mlp.up_proj", side="input").tolist() == expected


# --- the change of basis of a weight


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(1, 70), st.integers(1, 70))
def test_rotation_preserves_norms_and_is_undone(m, n):
    generator = torch.Generator().manual_seed(m * 100 + n)
    weight = torch.randn(m, n, generator=generator, dtype=torch.float64)
    rotation = Rotation(
        signs(n, seed=0, name="x", side="input").double(),
        signs(m, seed=0, name="x", side="output").double(),
        transform_for(padded(n)),
        transform_for(padded(m)),
    )
    rotated = rotation.apply(weight)
    assert rotated.shape == (padded(m), padded(n))
    torch.testing.assert_close(rotated.norm(), weight.norm(), rtol=1e-6, atol=0)
    torch.testing.assert_close(rotation.restore(rotated), weight, rtol=1e-6, atol=1e-6)
    rows, columns = rotation.restore_constant()
    ones = rotation.restore(torch.ones_like(rotated))
    torch.testing.assert_close(torch.outer(rows, columns), ones, rtol=1e-6, atol=1e-9)


def test_rotation_leaves_the_error_metric_invariant():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(192, 576, generator=generator, dtype=torch.float64)
    x = torch.randn(900, 576, generator=generator, dtype=torch.float64)
    hessian = x.T @ x
    su = signs(576, seed=5, name="in", side="input").double()
    transform = transform_for(576)
    rotation = Rotation(
        su, signs(192, seed=5, name="out", side="output").double(), transform, transform_for(192)
    )
    rotated = rotation.apply(weight)
    inner = transform.apply(transform.apply(hessian * torch.outer(su, su)).T)
    before, after = (w @ h * w for w, h in ((weight, hessian), (rotated, inner)))
    assert float(after.sum()) == pytest.approx(float(before.sum()), rel=1e-9)
    assert float(rotated.norm()) == pytest.approx(float(weight.norm()), rel=1e-9)


def test_rotation_spreads_outliers():
    weight = torch.randn(192, 192, generator=torch.Generator().manual_seed(4))
    weight[:, 7] *= 30
    rotation = Rotation(
        signs(192, seed=0, name="a", side="input"),
        signs(192, seed=0, name="a", side="output"),
        transform_for(192),
        transform_for(192),
    )
    rotated = rotation.apply(weight)

    def kurtosis(values: torch.Tensor) -> float:
        return float(values.pow(4).mean() / values.square().mean().square())

    assert kurtosis(weight) > 100
    assert kurtosis(rotated) == pytest.approx(3, abs=0.15)
