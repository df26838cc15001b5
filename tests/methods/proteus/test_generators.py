"""MUL-BAL generators: exact integers, records, bad parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus.codes import ONE_MAD
from assay.methods.proteus.generators import Generator

MANY = settings(derandomize=True, deadline=None, max_examples=80)
GENERATORS = st.builds(
    Generator,
    multiplier=st.integers(0, 2**31 - 1).map(lambda half: 2 * half + 1),
    addend=st.integers(0, 2**32 - 1),
    shift=st.integers(0, 31),
    signs=st.tuples(*[st.sampled_from([-1, 1])] * 4),
)


def raw_in_uint32(generator: Generator, states: np.ndarray) -> np.ndarray:
    """z in numpy's wrapping uint32 arithmetic, bytes taken from memory."""
    word = states.astype(np.uint32) * np.uint32(generator.multiplier) + np.uint32(generator.addend)
    if generator.shift:
        word ^= word >> np.uint32(generator.shift)
    pieces = word.astype("<u4").view(np.uint8).reshape(*states.shape, 4).astype(np.int32)
    return pieces @ np.array(generator.signs, dtype=np.int32)


@MANY
@given(GENERATORS)
@example(Generator(2**32 - 1, 2**32 - 1, 31, (-1, -1, -1, -1)))
def test_raw_equals_uint32_arithmetic(generator):
    table = generator.table(12)
    assert table.dtype == torch.int32
    np.testing.assert_array_equal(table.numpy(), raw_in_uint32(generator, np.arange(1 << 12)))


def test_raw_of_a_state_by_hand():
    # 3 * 0x01010101 + 5 = 0x03030308; shifted by 8: 0x00030303; xor: 0x0300000B.
    generator = Generator(0x01010101, 5, 8, (1, -1, 1, -1))
    assert generator.raw(torch.tensor([3])).tolist() == [0x0B - 0x00 + 0x00 - 0x03]


def test_raw_keeps_the_shape_and_takes_any_integer_type():
    generator = Generator(0x9E3779B1, 7, 15)
    states = torch.arange(24).reshape(2, 3, 4)
    expected = generator.raw(states)
    assert expected.shape == states.shape
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(generator.raw(states.to(dtype)), expected)


@MANY
@given(GENERATORS, st.integers(-1, 7))
def test_record_round_trip(generator, candidate):
    record = generator.record(candidate=candidate)
    assert record.dtype == torch.int32
    assert record.shape == (8,)
    assert Generator.from_record(record) == generator
    assert record[4] == candidate


def test_record_layout_is_fixed():
    record = Generator(0xFFFFFFFF, 0x80000000, 15, (1, -1, 1, -1)).record(candidate=3)
    assert record.tolist() == [-1, -(2**31), 15, 0b1010, 3, 0, 0, 0]


def test_one_mad_is_a_member_with_its_published_constants():
    states = np.arange(1 << 16, dtype=np.uint32)
    word = states * np.uint32(34038481) + np.uint32(76625530)
    total = sum(((word >> np.uint32(8 * byte)) & np.uint32(255)).astype(np.int64) for byte in range(4))
    published = (total - 510) / 147.800537
    ours = (ONE_MAD.table(16).numpy() - 510) / 147.800537
    np.testing.assert_allclose(ours, published, rtol=0, atol=1e-12)
    assert abs(published.std() - 1.0) < 0.01


def test_moments_of_a_known_member():
    table = Generator(0x9E3779B1, 0, 15, (1, -1, 1, -1)).table(16).double()
    assert abs(float(table.mean()) - 1.138) < 0.001
    assert abs(float(table.std(correction=0)) - 147.61) < 0.01


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"multiplier": 4}, "multiplier 4 must be odd"),
        ({"multiplier": 2**32 + 1}, "multiplier 4294967297"),
        ({"multiplier": -1}, "multiplier -1"),
        ({"multiplier": 1, "addend": -1}, "addend -1"),
        ({"multiplier": 1, "addend": 2**32}, "addend 4294967296"),
        ({"multiplier": 1, "shift": 32}, "shift 32"),
        ({"multiplier": 1, "signs": (1, 1, 1, 0)}, "signs"),
        ({"multiplier": 1, "signs": (1, 1, 1)}, "signs"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(InputError, match=message):
        Generator(**parameters)


def test_bad_records():
    record = Generator(1).record()
    with pytest.raises(InputError, match="8 integers"):
        Generator.from_record(record[:7])
    with pytest.raises(InputError, match="8 integers"):
        Generator.from_record(record.float())
    for position, value in ((3, 16), (3, -1), (7, 1)):
        damaged = record.clone()
        damaged[position] = value
        with pytest.raises(InputError, match="damaged or of a newer version"):
            Generator.from_record(damaged)
    even = record.clone()
    even[0] = 2
    with pytest.raises(InputError, match="must be odd"):
        Generator.from_record(even)
