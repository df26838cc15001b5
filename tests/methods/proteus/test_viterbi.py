"""The encoder against enumeration, against its reference, and against what is known of Gaussian sources."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.methods.proteus import viterbi
from assay.methods.proteus.codes import CODES, gaussian_table, lloyd_max, mulbal
from assay.methods.proteus.pool import pool
from assay.methods.proteus.trellis import Trellis, is_tail_biting, pack, unpack
from assay.methods.proteus.vetting import estimate, gaussian_tiles, squared_errors
from assay.methods.proteus.viterbi import encode_tiles, encode_tiles_reference

FEW = settings(derandomize=True, deadline=None, max_examples=50)
RATE_DISTORTION_LIMIT = 2.0**-4


def problem(trellis: Trellis, count: int, seed: int, *, levels: int | None = None):
    """Sequences and a code; with `levels`, small integers, so that costs are exact and ties common."""
    random = torch.Generator().manual_seed(seed)
    shape = (trellis.states, trellis.values_per_state)[: trellis.values_per_state]
    if levels is not None:
        x = torch.randint(0, levels, (count, trellis.length), generator=random).float()
        return x, torch.randint(0, levels, shape, generator=random).float()
    return torch.randn(count, trellis.length, generator=random), torch.randn(shape, generator=random)


def cost_of(states: torch.Tensor, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (values[states.long()].reshape(x.shape) - x).double().square().sum(dim=-1)


def circular_paths(trellis: Trellis) -> torch.Tensor:
    """All tail-biting paths: one for every bit stream."""
    streams = np.arange(1 << (8 * trellis.bytes), dtype="<u4").view(np.uint8).reshape(-1, 4)
    return unpack(torch.from_numpy(streams[:, : trellis.bytes].copy()), trellis)


# optimality


@pytest.mark.parametrize("seed", range(5))
def test_viterbi_finds_the_cheapest_of_all_paths(seed):
    """16 first states and 4^3 continuations."""
    trellis = Trellis(window=4, bits=2, length=4)
    x, values = problem(trellis, 1, seed)
    free = torch.zeros(1, trellis.prefixes)
    found = viterbi._viterbi(x[:, :, None], values[:, None], trellis, free)
    costs = {}
    for first, *symbols in itertools.product(range(16), range(4), range(4), range(4)):
        path = [first]
        for symbol in symbols:
            path.append(((path[-1] << 2) & 15) | symbol)
        costs[tuple(path)] = float(cost_of(torch.tensor(path), x[0], values))
    cheapest = min(costs, key=lambda path: costs[path])
    assert found[0].tolist() == list(cheapest)


@pytest.mark.parametrize("values_per_state", [1, 2])
@pytest.mark.parametrize("tail", ["exact", "windowed"])
def test_the_second_pass_is_optimal_given_the_wrap(tail, values_per_state):
    trellis = Trellis(window=6, bits=2, values_per_state=values_per_state, length=8)
    paths = circular_paths(trellis)
    x, values = problem(trellis, 20, seed=1)
    states = encode_tiles(x, values, trellis, tail=tail)
    for sequence, path in zip(x, states, strict=True):
        costs = cost_of(paths, sequence.expand(len(paths), -1), values)
        same_wrap = paths[:, 0] >> trellis.step_bits == int(path[0]) >> trellis.step_bits
        best = float(costs[same_wrap].min())
        assert float(cost_of(path, sequence, values)) == pytest.approx(best, rel=1e-5)


def test_the_wrap_is_mostly_the_best_one():
    trellis = Trellis(window=4, bits=2, length=8)
    paths = circular_paths(trellis)
    x, values = problem(trellis, 12, seed=3)
    found = cost_of(encode_tiles(x, values, trellis), x, values)
    decoded = values[paths.long()]
    best = torch.stack([(decoded - sequence).square().sum(dim=1).min() for sequence in x]).double()
    assert bool((found >= best * (1 - 1e-5)).all())
    assert int((found <= best * (1 + 1e-5)).sum()) >= 8


# the reference and the loops


@st.composite
def trellises(draw) -> Trellis:
    bits = draw(st.sampled_from([2, 3, 4]))
    values_per_state = draw(st.sampled_from([1, 1, 2]))
    window = draw(st.integers(max(4, bits * values_per_state), 11))
    return Trellis(window, bits, values_per_state, 8 * draw(st.integers(1, 6)))


@FEW
@given(
    trellises(), st.sampled_from(["exact", "windowed"]), st.sampled_from([None, 1, 2, 4]), st.integers(0, 99)
)
def test_the_fast_encoder_is_the_reference_bit_for_bit(trellis, tail, levels, seed):
    x, values = problem(trellis, 3, seed, levels=levels)
    fast = encode_tiles(x, values, trellis, tail=tail)
    assert fast.dtype == torch.int32
    assert torch.equal(fast, encode_tiles_reference(x, values, trellis, tail=tail))


@pytest.mark.parametrize(("window", "bits"), [(12, 2), (12, 3), (12, 4), (14, 2)])
def test_the_fast_encoder_is_the_reference_on_whole_tiles(window, bits):
    trellis = Trellis(window, bits)
    x, values = problem(trellis, 2, seed=window)
    assert torch.equal(encode_tiles(x, values, trellis), encode_tiles_reference(x, values, trellis))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.integers(4, 16),
    st.integers(1, 32),
    st.sampled_from([2, 3, 4]),
    st.sampled_from(["exact", "windowed"]),
)
def test_the_tail_always_bites(window, eighths, bits, tail):
    trellis = Trellis(window, bits, length=max(8 * eighths, 16) if window <= 12 else 16)
    x, values = problem(trellis, 2, seed=eighths)
    # Far from what the code can reach, too.
    x[1] = 1e6 * x[1] + 1e9
    states = encode_tiles(x, values, trellis, tail=tail)
    assert torch.equal(states[:, 0] >> bits, states[:, -1] & (trellis.prefixes - 1))
    assert is_tail_biting(states, trellis)
    assert torch.equal(unpack(pack(states, trellis), trellis), states)


def test_largest_magnitudes_still_give_a_path():
    trellis = Trellis(window=10, bits=2)
    _, values = problem(trellis, 1, seed=0)
    x = torch.full((1, 256), viterbi.LARGEST)
    assert is_tail_biting(encode_tiles(x, -x[0, 0] * values.sign(), trellis), trellis)


def test_the_number_of_threads_changes_nothing():
    trellis = Trellis(window=8, bits=2, length=64)
    x, values = problem(trellis, 5 * viterbi.CHUNK + 3, seed=2)
    alone = encode_tiles(x, values, trellis, threads=1)
    for threads in (2, 3, 16):
        assert torch.equal(encode_tiles(x, values, trellis, threads=threads), alone)
    assert torch.equal(encode_tiles(x[7:9], values, trellis), alone[7:9])


def test_types_and_layouts_of_the_input_do_not_matter():
    trellis = Trellis(window=8, bits=2, length=32)
    x, values = problem(trellis, 4, seed=6, levels=9)
    expected = encode_tiles(x, values, trellis)
    assert torch.equal(encode_tiles(x.double(), values.to(torch.float16), trellis), expected)
    assert torch.equal(encode_tiles(x.t().contiguous().t(), values[:, None], trellis), expected)
    with torch.enable_grad():
        assert torch.equal(encode_tiles(x.requires_grad_(), values, trellis), expected)


def test_no_sequences():
    trellis = Trellis(window=8, bits=2)
    for encode in (encode_tiles, encode_tiles_reference):
        assert encode(torch.zeros(0, 256), torch.zeros(256), trellis).shape == (0, 256)


def test_first_pass_lengths():
    assert viterbi.first_pass_steps(Trellis(window=16, bits=2), "windowed") == 128
    assert viterbi.first_pass_steps(Trellis(window=16, bits=2), "exact") == 256
    assert viterbi.first_pass_steps(Trellis(window=16, bits=2, length=64), "windowed") == 64
    assert viterbi.first_pass_steps(Trellis(window=12, bits=3), "windowed") == 64


def test_the_windowed_first_pass_loses_little():
    """Many sequences get another wrap, which is nearly as good: 0.1 percent at 10 bits."""
    trellis = Trellis(window=10, bits=2)
    values = gaussian_table(10).values
    x = gaussian_tiles(256, seed=11)
    exact = cost_of(encode_tiles(x, values, trellis, tail="exact"), x, values)
    windowed = cost_of(encode_tiles(x, values, trellis, tail="windowed"), x, values)
    assert float((windowed == exact).double().mean()) > 0.7
    assert abs(float(windowed.mean() / exact.mean()) - 1.0) < 0.003


# Gaussian source


def test_the_best_scalar_quantizer_for_comparison():
    levels = lloyd_max(2)
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = (x[:, None] - levels).square().min(dim=1).values.mean()
    assert abs(float(error) - 0.1175) < 0.0005


# The bands of published and earlier measurements of these codes.
BANDS = {8: (0.084, 0.092), 10: (0.075, 0.081), 12: (0.072, 0.076), 14: (0.068, 0.072), 16: (0.068, 0.071)}


def check_bands(window: int, tiles: int) -> None:
    x = gaussian_tiles(tiles, seed=1234)
    low, high = BANDS[window]
    for name in ("1mad", "3inst", "mul1", "mcg", "gaussian"):
        error = estimate(squared_errors(CODES[name](window), 2, x))
        assert error.mean > RATE_DISTORTION_LIMIT, name
        assert low - 2 * error.standard_error < error.mean < high + 2 * error.standard_error, name


@pytest.mark.parametrize("window", [8, 10, 12])
def test_errors_of_known_codes_on_a_gaussian_source(window):
    check_bands(window, tiles=256)


@pytest.mark.slow
@pytest.mark.parametrize("window", [14, 16])
def test_errors_of_known_codes_in_large_windows(window):
    check_bands(window, tiles=128)


def test_the_pool_reaches_its_figure_at_12_bits():
    errors = squared_errors(mulbal(pool(12, 2)[0], 12), 2, gaussian_tiles(512, seed=77))
    assert RATE_DISTORTION_LIMIT < float(errors.mean()) < 0.075


@pytest.mark.slow
def test_the_pool_reaches_its_figure_at_16_bits():
    errors = squared_errors(mulbal(pool(16, 2)[0], 16), 2, gaussian_tiles(128, seed=77))
    assert RATE_DISTORTION_LIMIT < float(errors.mean()) < 0.071


@pytest.mark.parametrize("bits", [3, 4])
def test_more_bits_approach_their_own_limit(bits):
    errors = squared_errors(mulbal(pool(10, bits)[0], 10), bits, gaussian_tiles(64, seed=5))
    assert 4.0**-bits < float(errors.mean()) < 1.6 * 4.0**-bits


# bad input


@pytest.mark.parametrize("encode", [encode_tiles, encode_tiles_reference])
def test_bad_input(encode):
    trellis = Trellis(window=6, bits=2, length=16)
    x, values = problem(trellis, 3, seed=0)
    for bad in (math.nan, math.inf, -1e16):
        spoiled = x.clone()
        spoiled[1, 3] = bad
        with pytest.raises(InputError, match="1 of the sequences are not finite"):
            encode(spoiled, values, trellis)
    with pytest.raises(InputError, match="2 of the code values"):
        encode(x, torch.where(torch.arange(64) < 2, math.nan, values), trellis)
    with pytest.raises(InputError, match=r"sequences must be of shape \[n, 16\], not \[3, 15\]"):
        encode(x[:, :15], values, trellis)
    with pytest.raises(InputError, match=r"not \[16\]"):
        encode(x[0], values, trellis)
    with pytest.raises(InputError, match=r"code values of shape \[64, 1\], not \[63\]"):
        encode(x, values[:63], trellis)
    with pytest.raises(InputError, match=r"not \[64, 2\]"):
        encode(x, values[:, None].expand(-1, 2), trellis)
    with pytest.raises(InputError, match=r"code values of shape \[64, 2\], not \[64\]"):
        encode(x, values, Trellis(window=6, bits=2, values_per_state=2, length=16))
    with pytest.raises(InputError, match="tail 'open'"):
        encode(x, values, trellis, tail="open")


def test_bad_number_of_threads():
    trellis = Trellis(window=6, bits=2, length=16)
    x, values = problem(trellis, 3, seed=0)
    with pytest.raises(InputError, match="0 threads"):
        encode_tiles(x, values, trellis, threads=0)
