"""Binary BCH codes of length 127, 255 and 511, with hard and with soft (Chase-2) decoding.

A code word is a multiple of the generator polynomial, whose roots are alpha, alpha^2, ..., alpha^2t in the
field of 2^m elements. Errors are located by Berlekamp-Massey and Chien's search over all positions. Words are
arrays of bits, position i being the coefficient of x^i; the message stands in the highest k positions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, UInt8

from assay.errors import InputError

# Primitive polynomials, one a field: x^7 + x^3 + 1, x^8 + x^4 + x^3 + x^2 + 1, x^9 + x^4 + 1.
_PRIMITIVE = {7: 0x89, 8: 0x11D, 9: 0x211}
CHASE_POSITIONS = 6


@dataclass(frozen=True)
class Code:
    """A BCH code.

    Args:
        name: its registered name.
        m: the field has 2^m elements; words have 2^m - 1 bits.
        k: message bits.
        t: errors that it corrects for certain.
    """

    name: str
    m: int
    k: int
    t: int

    @property
    def n(self) -> int:
        """Bits of a word."""
        return 2**self.m - 1


CODES = {
    "bch127_64": Code("bch127_64", 7, 64, 10),
    "bch255_131": Code("bch255_131", 8, 131, 18),
    "bch255_71": Code("bch255_71", 8, 71, 29),
    "bch511_259": Code("bch511_259", 9, 259, 30),
}


def find_code(name: str) -> Code:
    """A registered code by its name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in CODES:
        raise InputError(f"there is no code {name!r}; choose from {', '.join(CODES)}")
    return CODES[name]


@functools.cache
def _field(m: int) -> tuple[np.ndarray, np.ndarray]:
    """Powers of alpha (twice around) and logarithms."""
    size = 2**m - 1
    powers = np.zeros(2 * size, dtype=np.int64)
    logarithms = np.zeros(size + 1, dtype=np.int64)
    value = 1
    for i in range(size):
        powers[i] = powers[i + size] = value
        logarithms[value] = i
        value <<= 1
        if value > size:
            value ^= _PRIMITIVE[m]
    return powers, logarithms


@functools.cache
def generator(code: Code) -> UInt8[np.ndarray, " coefficients"]:
    """The generator polynomial, coefficient of x^0 first; its degree is n - k.

    Raises:
        InputError: the code's k isn't what its t leaves.
    """
    powers, logarithms = _field(code.m)
    size = code.n
    roots: set[int] = set()
    for i in range(1, 2 * code.t + 1):
        while i not in roots:
            roots.add(i)
            i = 2 * i % size
    polynomial = [1]
    for root in sorted(roots):
        longer = [0, *polynomial]
        for place, factor in enumerate(polynomial):
            if factor:
                longer[place] ^= int(powers[(logarithms[factor] + root) % size])
        polynomial = longer
    if len(polynomial) != code.n - code.k + 1 or max(polynomial) > 1:
        raise InputError(f"no BCH code has n = {code.n}, k = {code.k}, t = {code.t}")
    return np.array(polynomial, dtype=np.uint8)


def encode(message: UInt8[np.ndarray, " k"], code: Code) -> UInt8[np.ndarray, " n"]:
    """The code word of a message: parity in the low positions, the message in the high ones.

    Raises:
        InputError: the message hasn't k bits.
    """
    message = np.asarray(message, dtype=np.uint8)
    if message.shape != (code.k,):
        raise InputError(f"a message of {code.name} has {code.k} bits, got {message.shape}")
    polynomial = generator(code)
    remainder = np.zeros(code.n, dtype=np.uint8)
    remainder[code.n - code.k :] = message
    for place in range(code.n - 1, code.n - code.k - 1, -1):
        if remainder[place]:
            low = place - (code.n - code.k)
            remainder[low : place + 1] ^= polynomial
    remainder[code.n - code.k :] = message
    return remainder


@numba.njit(cache=True)
def _locate(syndromes, powers, logarithms, size, t, positions):  # pragma: no cover - compiled
    """Error positions from syndromes S_1..S_2t (index 1..2t); their number, or -1 where decoding fails."""
    zero = True
    for i in range(1, 2 * t + 1):
        if syndromes[i] != 0:
            zero = False
            break
    if zero:
        return 0
    locator = np.zeros(2 * t + 2, dtype=np.int64)
    previous = np.zeros(2 * t + 2, dtype=np.int64)
    saved = np.zeros(2 * t + 2, dtype=np.int64)
    locator[0] = 1
    previous[0] = 1
    length = 0
    shift = 1
    last = 1
    for step in range(2 * t):
        discrepancy = syndromes[step + 1]
        for i in range(1, length + 1):
            if locator[i] != 0 and syndromes[step + 1 - i] != 0:
                discrepancy ^= powers[logarithms[locator[i]] + logarithms[syndromes[step + 1 - i]]]
        if discrepancy == 0:
            shift += 1
            continue
        ratio = (logarithms[discrepancy] - logarithms[last]) % size
        longer = 2 * length <= step
        if longer:
            saved[:] = locator
        for i in range(2 * t + 2 - shift):
            if previous[i] != 0:
                locator[i + shift] ^= powers[logarithms[previous[i]] + ratio]
        if longer:
            length = step + 1 - length
            previous[:] = saved
            last = discrepancy
            shift = 1
        else:
            shift += 1
    if length > t:
        return -1
    found = 0
    for place in range(size):
        # An error at x^place makes alpha^-place a root of the locator.
        value = 1
        for i in range(1, length + 1):
            if locator[i] != 0:
                value ^= powers[(logarithms[locator[i]] + i * (size - place)) % size]
        if value == 0:
            if found == length:
                return -1
            positions[found] = place
            found += 1
    return found if found == length else -1


@numba.njit(cache=True)
def _decode_patterns(word, patterns, places, powers, logarithms, size, t):  # pragma: no cover - compiled
    """Hard decoding of `word` with each pattern of `places` flipped: words, and errors found (-1: failed)."""
    words = np.empty((patterns.shape[0], size), dtype=np.uint8)
    errors = np.empty(patterns.shape[0], dtype=np.int64)
    base = np.zeros(2 * t + 1, dtype=np.int64)
    for place in range(size):
        if word[place]:
            for i in range(1, 2 * t + 1):
                base[i] ^= powers[(i * place) % size]
    syndromes = np.empty_like(base)
    positions = np.empty(t, dtype=np.int64)
    for row in range(patterns.shape[0]):
        syndromes[:] = base
        words[row] = word
        for j in range(places.shape[0]):
            if patterns[row, j]:
                words[row, places[j]] ^= 1
                for i in range(1, 2 * t + 1):
                    syndromes[i] ^= powers[(i * places[j]) % size]
        found = _locate(syndromes, powers, logarithms, size, t, positions)
        errors[row] = found
        for i in range(found):
            words[row, positions[i]] ^= 1
    return words, errors


def decode_hard(word: UInt8[np.ndarray, " n"], code: Code) -> tuple[UInt8[np.ndarray, " n"], int] | None:
    """The code word within distance t of a word and the number of errors, or None where there is none."""
    powers, logarithms = _field(code.m)
    nothing = np.zeros((1, 0), dtype=np.uint8)
    words, errors = _decode_patterns(
        np.asarray(word, np.uint8), nothing, np.zeros(0, np.int64), powers, logarithms, code.n, code.t
    )
    return (words[0], int(errors[0])) if errors[0] >= 0 else None


def decode_soft(
    soft: Float[np.ndarray, " n"],
    code: Code,
    accept: Callable[[np.ndarray], bool] = lambda message: True,
) -> UInt8[np.ndarray, " n"] | None:
    """Chase-2: hard decoding with every pattern of flips in the 6 least reliable positions.

    Args:
        soft: one number a bit; positive means 0, negative 1, and its size how sure that is.
        code: the code.
        accept: is a message (k bits) a valid one? The accepted word that correlates best with `soft` wins.

    Returns:
        The code word, or None where no accepted one was found.
    """
    soft = np.asarray(soft, dtype=float)
    powers, logarithms = _field(code.m)
    places = np.argsort(np.abs(soft), kind="stable")[:CHASE_POSITIONS]
    patterns = np.array(list(itertools.product((0, 1), repeat=CHASE_POSITIONS)), dtype=np.uint8)
    word = (soft < 0).astype(np.uint8)
    words, errors = _decode_patterns(word, patterns, places, powers, logarithms, code.n, code.t)
    candidates = np.unique(words[errors >= 0], axis=0)
    scores = (1.0 - 2.0 * candidates) @ soft
    for row in np.argsort(-scores, kind="stable"):
        if accept(candidates[row, code.n - code.k :]):
            return candidates[row]
    return None
