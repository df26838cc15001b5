"""The quadratic character of a finite field, which is all that Paley's constructions need of it.

An element of GF(p^k) is written as a number below p^k: its digits in base p are the coefficients of a
polynomial over GF(p), the lowest power first. Addition is digit by digit, multiplication is modulo a monic
irreducible polynomial, which is found by search.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from jaxtyping import Int


def prime_power(q: int) -> tuple[int, int] | None:
    """The prime p and the exponent k with p^k = q, or None when q is not the power of one prime."""
    if q < 2:
        return None
    p = next((d for d in range(2, int(q**0.5) + 1) if q % d == 0), q)
    k, rest = 0, q
    while rest % p == 0:
        rest //= p
        k += 1
    return (p, k) if rest == 1 else None


@lru_cache(maxsize=16)
def difference_characters(q: int) -> Int[np.ndarray, "q q"]:
    """The Jacobsthal matrix of GF(q): the quadratic character of a_i - a_j for all elements a_i, a_j.

    The character is 0 at zero, 1 at the squares and -1 elsewhere.

    Args:
        q: an odd prime power.

    Raises:
        ValueError: `q` is not an odd prime power.

    Source: Paley (1933), section 2.
    """
    found = prime_power(q)
    if found is None or q % 2 == 0:
        raise ValueError(f"{q} is not an odd prime power")
    p, k = found
    digits = np.stack([np.arange(q) // p**power % p for power in range(k)], axis=1)
    squares = _multiply(digits, digits, p, k)
    weights = p ** np.arange(k)
    character = np.full(q, -1, dtype=np.int8)
    character[squares @ weights] = 1
    character[0] = 0
    differences = (digits[:, None, :] - digits[None, :, :]) % p
    return character[differences @ weights]


def _multiply(a: Int[np.ndarray, "n k"], b: Int[np.ndarray, "n k"], p: int, k: int) -> Int[np.ndarray, "n k"]:
    """Products of elements, given by their digits."""
    result = np.zeros((len(a), 2 * k - 1), dtype=np.int64)
    for i in range(k):
        for j in range(k):
            result[:, i + j] += a[:, i] * b[:, j]
    result %= p
    modulus = _irreducible(p, k)
    # x^k is congruent to minus the lower part of the monic modulus: take off the highest powers one by one.
    for power in range(2 * k - 2, k - 1, -1):
        lead = result[:, power].copy()
        for i, coefficient in enumerate((*modulus, 1)):
            result[:, power - k + i] = (result[:, power - k + i] - lead * coefficient) % p
    return result[:, :k]


@lru_cache(maxsize=16)
def _irreducible(p: int, k: int) -> tuple[int, ...]:
    """The lower coefficients of the first monic irreducible polynomial of degree k over GF(p)."""
    for lower in product(range(p), repeat=k):
        candidate = (*lower, 1)
        divisors = ((*low, 1) for degree in range(1, k // 2 + 1) for low in product(range(p), repeat=degree))
        if not any(_divides(divisor, candidate, p) for divisor in divisors):
            return lower
    raise AssertionError("a finite field has irreducible polynomials of every degree")


def _divides(divisor: tuple[int, ...], dividend: tuple[int, ...], p: int) -> bool:
    """Whether a monic polynomial divides another over GF(p); coefficients from the lowest power on."""
    rest = list(dividend)
    while len(rest) >= len(divisor):
        lead = rest.pop()
        for i in range(1, len(divisor)):
            rest[-i] = (rest[-i] - lead * divisor[-1 - i]) % p
    return not any(rest)
