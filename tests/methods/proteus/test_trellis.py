"""The trellis and its bit stream: exact inverses, the window formula, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.trellis import Trellis, decode_tiles, is_tail_biting, pack, unpack
from assay.methods.proteus.viterbi import encode_tiles

MANY = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def trellises(draw) -> Trellis:
    bits = draw(st.sampled_from([2, 3, 4]))
    values_per_state = draw(st.sampled_from([1, 2]))
    window = draw(st.integers(max(4, bits * values_per_state), 16))
    length = 8 * draw(st.integers(1, 32))
    if bits * length < window:
        length = 16
    return Trellis(window, bits, values_per_state, length)


def random_bytes(trellis: Trellis, count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, trellis.bytes), generator=random, dtype=torch.uint8)


@MANY
@given(trellises(), st.integers(0, 1000))
def test_any_bytes_are_tail_biting_states_and_come_back(trellis, seed):
    packed = random_bytes(trellis, 3, seed)
    states = unpack(packed, trellis)
    assert states.dtype == torch.int32
    assert states.shape == (3, trellis.steps)
    assert is_tail_biting(states, trellis)
    assert torch.equal(pack(states, trellis), packed)


@MANY
@given(trellises(), st.integers(0, 1000))
def test_a_state_is_the_window_at_its_position_of_the_circular_stream(trellis, seed):
    packed = random_bytes(trellis, 1, seed)
    states = unpack(packed, trellis)[0]
    total = 8 * trellis.bytes
    # One long integer whose bits are the stream, twice over, so that a window at the end finds its wrap.
    stream = int.from_bytes(bytes(packed[0].tolist()), "little")
    stream |= stream << total
    for time in range(trellis.steps):
        position = trellis.steps - 1 - time
        window = (stream >> (trellis.step_bits * position)) % trellis.states
        assert int(states[time]) == window


@MANY
@given(trellises(), st.integers(0, 1000))
def test_states_follow_the_shift_of_their_symbols(trellis, seed):
    """The recursion s' = (s << k | c) mod 2^L, started at the last state, gives all states."""
    states = unpack(random_bytes(trellis, 1, seed), trellis)[0].tolist()
    state = states[-1]
    for expected in states:
        symbol = expected % trellis.branches
        state = ((state << trellis.step_bits) % trellis.states) | symbol
        assert state == expected


def test_a_release_tile_is_a_cache_line():
    trellis = Trellis(window=16, bits=2)
    assert (trellis.bytes, trellis.states, trellis.branches, trellis.prefixes) == (64, 65536, 4, 16384)


def test_packing_by_hand():
    # Symbols in time: 1, 2, 3, 0, so positions 3, 2, 1, 0 hold them: the byte is 0b01_10_11_00.
    trellis = Trellis(window=4, bits=2, length=4)
    states = torch.tensor([[0b0001, 0b0110, 0b1011, 0b1100]])
    assert pack(states, trellis).tolist() == [[0b01101100]]
    assert np.array_equal(unpack(torch.tensor([[0b01101100]], dtype=torch.uint8), trellis), states)


def test_no_sequences():
    trellis = Trellis()
    assert pack(torch.zeros(0, 256, dtype=torch.int32), trellis).shape == (0, 64)
    assert unpack(torch.zeros(0, 64, dtype=torch.uint8), trellis).shape == (0, 256)


def test_is_tail_biting_sees_a_broken_step_a_broken_wrap_and_a_large_state():
    trellis = Trellis(window=8, bits=2, length=16)
    states = unpack(random_bytes(trellis, 2, 5), trellis)
    assert is_tail_biting(states, trellis)
    for time in (0, 7, 15):
        broken = states.clone()
        broken[1, time] ^= 0b10000
        assert not is_tail_biting(broken, trellis)
    large = states.clone()
    large[0] += 256
    assert not is_tail_biting(large, trellis)


def test_pack_refuses_what_it_could_not_give_back():
    trellis = Trellis(window=8, bits=2, length=16)
    states = unpack(random_bytes(trellis, 2, 5), trellis)
    with pytest.raises(InputError, match=r"shape \[n, 16\]"):
        pack(states[:, :8], trellis)
    with pytest.raises(InputError, match=r"shape \[n, 16\]"):
        pack(states.float(), trellis)
    with pytest.raises(InputError, match="not tail-biting"):
        pack(states.roll(1, dims=0) ^ 64, trellis)


def test_unpack_refuses_a_wrong_size():
    trellis = Trellis(window=8, bits=2, length=16)
    with pytest.raises(InputError, match=r"uint8 of shape \[n, 4\]"):
        unpack(torch.zeros(2, 5, dtype=torch.uint8), trellis)
    with pytest.raises(InputError, match="int32"):
        unpack(torch.zeros(2, 4, dtype=torch.int32), trellis)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": 3}, "window 3 must be 4 to 16"),
        ({"window": 17}, "window 17 must be 4 to 16"),
        ({"bits": 1}, "1 bits a weight"),
        ({"bits": 5}, "5 bits a weight"),
        ({"values_per_state": 3}, "3 values per state"),
        ({"window": 6, "bits": 4, "values_per_state": 2}, "step of 8 bits does not fit"),
        ({"length": 0}, "sequences of 0 weights"),
        ({"length": 10, "bits": 3}, "multiple of 8"),
        ({"length": 4, "window": 16}, "fewer than a state"),
    ],
)
def test_bad_trellises(parameters, message):
    with pytest.raises(InputError, match=message):
        Trellis(**parameters)


def test_tiles_decode_to_the_values_that_their_states_were_chosen_for():
    generator, trellis = Generator(0x9E3779B1, shift=15, signs=(1, -1, 1, -1)), Trellis(8)
    table = generator.table(8)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    states = encode_tiles(x, table / 147.8, trellis)
    decoded = decode_tiles(pack(states, trellis), generator, trellis)
    assert torch.equal(decoded, table[states.long()])
    assert float((decoded / 147.8 - x).square().mean()) < 0.12
