"""Codes, frames, and false-positive probabilities."""

import hashlib
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from assay.errors import InputError
from assay.methods.panorama_watermark.bch import (
    CODES,
    Code,
    decode_hard,
    decode_soft,
    encode,
    find_code,
    generator,
)
from assay.methods.panorama_watermark.frames import (
    as_payload,
    blind_false_positive,
    capacity,
    frame_bits,
    match_p_value,
    read_frame,
)
from assay.methods.panorama_watermark.keys import Key

KEY = Key(bytes(range(16)))
ALL = pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))


def test_generators():
    """Degrees are n - k, and a k that the design distance doesn't leave is refused."""
    assert [len(generator(code)) - 1 for code in CODES.values()] == [63, 124, 184, 252]
    with pytest.raises(InputError, match="no BCH code"):
        generator(Code("wrong", 7, 65, 10))


def test_generators_of_the_literature():
    """Octal, as tables of binary BCH codes print them."""
    for code, digits in {
        Code("", 7, 71, 9): "6255010713253127753",
        find_code("bch127_64"): "1206534025570773100045",
        find_code("bch255_131"): "215713331471510151261250277442142024165471",
    }.items():
        assert int("".join(map(str, generator(code)[::-1])), 2) == int(digits, 8)


def remainder(dividend, divisor):
    """Of polynomials over two elements, as whole numbers whose bits are the coefficients."""
    while dividend.bit_length() >= divisor.bit_length():
        dividend ^= divisor << (dividend.bit_length() - divisor.bit_length())
    return dividend


def product(first, second):
    return reduce(xor, (first << place for place in range(second.bit_length()) if second >> place & 1), 0)


@ALL
def test_generators_have_the_roots_that_define_them(code):
    """Horner's rule modulo the field's polynomial: zero at alpha^1, ..., alpha^2t and conjugates only."""
    field = {7: 0b10001001, 8: 0b100011101, 9: 0b1000010001}[code.m]
    coefficients = generator(code)[::-1].tolist()
    alpha, roots = 1, set()
    for power in range(code.n):
        value = reduce(lambda value, bit: remainder(product(value, alpha), field) ^ bit, coefficients, 0)
        if value == 0:
            roots.add(power)
        alpha = remainder(alpha << 1, field)
    assert alpha == 1
    assert roots == {i * 2**j % code.n for i in range(1, 2 * code.t + 1) for j in range(code.m)}


FROZEN = {
    "bch127_64": "a6396a63d481ff74",
    "bch255_131": "db115057834edefa",
    "bch255_71": "78ae12dc05c480ac",
    "bch511_259": "3b10aebc3f0aa845",
}


@ALL
def test_frozen_frames(code):
    """Changing generator, check, version or order of bits orphans every image that is marked already."""
    bits = frame_bits(b"hello", KEY, code)
    assert hashlib.sha256(bits.tobytes()).hexdigest()[:16] == FROZEN[code.name]


@ALL
def test_words_are_multiples_of_the_generator(code):
    rng = np.random.default_rng(0)
    message = rng.integers(0, 2, code.k, dtype=np.uint8)
    word = encode(message, code)
    assert np.array_equal(word[code.n - code.k :], message)
    as_number = [int("".join(map(str, bits[::-1])), 2) for bits in (word, generator(code))]
    assert remainder(*as_number) == 0


@ALL
def test_corrects_up_to_t_errors(code):
    rng = np.random.default_rng(1)
    for errors in (0, 1, code.t - 1, code.t):
        word = encode(rng.integers(0, 2, code.k, dtype=np.uint8), code)
        damaged = word.copy()
        damaged[rng.permutation(code.n)[:errors]] ^= 1
        decoded = decode_hard(damaged, code)
        assert decoded is not None
        assert np.array_equal(decoded[0], word)
        assert decoded[1] == errors


def test_share_of_decodable_words():
    """Random words are within t of a code word as often as the ball says: a small code, by simulation."""
    code = Code("small", 7, 106, 3)
    rng = np.random.default_rng(0)
    hits = sum(decode_hard(rng.integers(0, 2, 127, dtype=np.uint8), code) is not None for _ in range(2000))
    ball = 1 + 127 + 127 * 126 // 2 + 127 * 126 * 125 // 6
    expected = 2000 * ball / 2**21
    assert abs(hits - expected) < 4 * np.sqrt(expected)


def test_soft_decoding_goes_beyond_t():
    code = find_code("bch127_64")
    rng = np.random.default_rng(2)
    hard = soft = 0
    for _ in range(100):
        word = encode(rng.integers(0, 2, code.k, dtype=np.uint8), code)
        values = (1 - 2.0 * word) + 0.75 * rng.normal(size=code.n)
        plain = decode_hard((values < 0).astype(np.uint8), code)
        hard += plain is not None and np.array_equal(plain[0], word)
        chase = decode_soft(values, code)
        soft += chase is not None and np.array_equal(chase, word)
    assert soft > hard + 10


@ALL
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_payloads_survive_t_errors(code, data):
    payload = data.draw(st.binary(max_size=capacity(code)))
    flips = data.draw(st.sets(st.integers(0, code.n - 1), max_size=code.t))
    soft = 1 - 2.0 * frame_bits(payload, KEY, code)
    soft[list(flips)] *= -1
    decoded = read_frame(soft, KEY, code)
    assert decoded is not None
    assert (decoded.payload, decoded.errors) == (payload, len(flips))


def test_too_many_errors_never_give_a_wrong_payload():
    code = find_code("bch127_64")
    rng = np.random.default_rng(3)
    for _ in range(1000):
        payload = rng.bytes(5)
        soft = 1 - 2.0 * frame_bits(payload, KEY, code)
        soft[rng.permutation(code.n)[: code.t + 5 + rng.integers(40)]] *= -1
        decoded = read_frame(soft * rng.uniform(0.5, 1.5, code.n), KEY, code)
        assert decoded is None or decoded.payload == payload


def test_another_key_reads_nothing():
    code = find_code("bch127_64")
    soft = 1 - 2.0 * frame_bits(b"hello", KEY, code)
    assert read_frame(soft, Key(bytes(range(1, 17))), code) is None


def test_payloads():
    assert [as_payload(value) for value in (b"x", "é", 0, 258)] == [b"x", "é".encode(), b"\0", b"\1\2"]
    for bad in (-1, 1.5, True, None):
        with pytest.raises(InputError, match="payload"):
            as_payload(bad)
    assert [capacity(code) for code in CODES.values()] == [5, 13, 6, 29]
    with pytest.raises(InputError, match="holds 5: use the code bch255_71"):
        frame_bits(b"6 byte", KEY, find_code("bch127_64"))
    with pytest.raises(InputError, match="no code holds more than 29"):
        frame_bits(b"x" * 30, KEY, find_code("bch127_64"))
    with pytest.raises(InputError, match="choose from"):
        find_code("bch63")
    with pytest.raises(InputError, match="64 bits"):
        encode(np.zeros(3, np.uint8), find_code("bch127_64"))


def test_thresholds():
    """The numbers of matches at which chance has probability 1e-3, 1e-6 and 1e-9."""
    for n, thresholds in {127: (82, 91, 97), 255: (153, 166, 176), 511: (291, 310, 324)}.items():
        for level, threshold in zip((1e-3, 1e-6, 1e-9), thresholds, strict=True):
            assert match_p_value(threshold, n) <= level < match_p_value(threshold - 1, n)
            assert match_p_value(threshold, n) == pytest.approx(binom.sf(threshold - 1, n, 0.5), rel=1e-9)
    assert match_p_value(0, 127) == 1.0
    assert match_p_value(511, 511) == 2.0**-511
    assert match_p_value(91, 127, 3) == pytest.approx(3 * match_p_value(91, 127))


def test_blind_false_positive():
    assert blind_false_positive(find_code("bch127_64"), 3) == pytest.approx(7.3e-8, rel=0.02)
    assert blind_false_positive(find_code("bch255_131"), 3) < 1e-12


def test_the_check_is_fair():
    """The check of random messages looks like coins: here its first bit."""
    from assay.methods.panorama_watermark import frames

    rng = np.random.default_rng(0)
    counts = np.zeros(2)
    check = frames._check_value
    for _ in range(3000):
        bits = rng.integers(0, 2, 48, dtype=np.uint8)
        counts[check(KEY, bits)[0]] += 1
    assert chisquare(counts).pvalue > 0.01
