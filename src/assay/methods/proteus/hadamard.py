"""Hadamard matrices: entries +1 and -1, orthogonal rows.

Sylvester's doubling gives the powers of two, Paley's two constructions many multiples of four between them,
and Kronecker products of Hadamard matrices are Hadamard matrices.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int

from assay.methods.proteus.finite_field import difference_characters, prime_power

# A factor is applied as a small dense matrix product; above this order that would no longer be cheap.
LARGEST_ORDER = 512


def sylvester(power: int) -> Int[np.ndarray, "order order"]:
    """The Sylvester-Hadamard matrix of order 2^power."""
    result = np.ones((1, 1), dtype=np.int8)
    for _ in range(power):
        result = np.block([[result, result], [result, -result]])
    return result


def has_paley(order: int) -> bool:
    """Whether one of Paley's constructions gives a Hadamard matrix of this order."""
    return _first_kind(order) or _second_kind(order)


@lru_cache(maxsize=32)
def paley(order: int) -> Int[np.ndarray, "order order"]:
    """A Hadamard matrix of Paley's first kind where the order has one, else of the second kind.

    Args:
        order: q + 1 with a prime power q = 3 mod 4, or 2 (q + 1) with a prime power q = 1 mod 4.

    Raises:
        ValueError: the order is of neither form.

    Source: Paley (1933), lemmas 2 and 3.
    """
    if _first_kind(order):
        bordered = _bordered(order - 1, corner_sign=-1)
        return (np.eye(order, dtype=np.int8) + bordered).astype(np.int8)
    if _second_kind(order):
        half = order // 2
        bordered = _bordered(half - 1, corner_sign=1)
        off_diagonal = np.array([[1, 1], [1, -1]])
        diagonal = np.array([[1, -1], [-1, -1]])
        return (np.kron(bordered, off_diagonal) + np.kron(np.eye(half), diagonal)).astype(np.int8)
    raise ValueError(f"there is no Paley matrix of order {order}")


@lru_cache(maxsize=256)
def paley_factors(odd: int, spare: int) -> tuple[int, ...] | None:
    """Paley orders whose product is odd * 2^j with j at most `spare`: the fewest, then the smallest sum.

    Args:
        odd: the odd part of a dimension.
        spare: the exponent of two in that dimension.

    Returns:
        The orders, each at most `LARGEST_ORDER`, or None when there are none. For `odd = 1` it is empty.
    """
    if odd == 1:
        return ()
    best: tuple[int, ...] | None = None
    # A Paley order is a multiple of four, so every factor costs at least two powers of two.
    for divisor in (d for d in range(3, odd + 1, 2) if odd % d == 0):
        for power in range(2, spare + 1):
            order = divisor << power
            if order > LARGEST_ORDER or not has_paley(order):
                continue
            rest = paley_factors(odd // divisor, spare - power)
            if rest is None:
                continue
            found = tuple(sorted((order, *rest), reverse=True))
            if best is None or (len(found), sum(found), found) < (len(best), sum(best), best):
                best = found
    return best


def _first_kind(order: int) -> bool:
    return order % 4 == 0 and prime_power(order - 1) is not None


def _second_kind(order: int) -> bool:
    return order % 4 == 0 and (order // 2 - 1) % 4 == 1 and prime_power(order // 2 - 1) is not None


def _bordered(q: int, *, corner_sign: int) -> Int[np.ndarray, "order order"]:
    """The Jacobsthal matrix of GF(q) with a row of ones on top and `corner_sign` times it on the left."""
    result = np.zeros((q + 1, q + 1), dtype=np.int64)
    result[0, 1:] = 1
    result[1:, 0] = corner_sign
    result[1:, 1:] = difference_characters(q)
    return result
