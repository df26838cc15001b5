"""Third-order rotation invariants of a field on the sphere: the bispectrum, for any triple of degrees.

b_{l1 l2 l} = sum over m1, m2, m of <l1 m1 l2 m2 | l m> a_{l1 m1} a_{l2 m2} conj(a_lm). It couples two degrees
by Clebsch-Gordan to a third and takes the inner product with the field's own part of that degree. A rotation
acts on both sides of that inner product by the same unitary matrix, so the number cannot change. Triples with
an even sum are real, those with an odd sum imaginary; the odd ones change their sign in a mirror image.

The engines never sum these products: an integral of three filtered copies of the field is a weighted sum of
bispectral numbers of even sum (`product_factor` is the weight), at the cost of three syntheses. The functions
here are the plain definition, for features of one's own and for checking that identity.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import scipy.linalg
from jaxtyping import Complex, Float

from assay.errors import InputError
from assay.methods.panorama_watermark.harmonics import coefficient_count, coefficient_places


def _check_triple(l1: int, l2: int, degree: int, lmax: int) -> None:
    if min(l1, l2, degree) < 0 or max(l1, l2, degree) > lmax:
        raise InputError(f"the triple {(l1, l2, degree)} has a degree outside 0..{lmax}")
    if not abs(l1 - l2) <= degree <= l1 + l2:
        raise InputError(
            f"the triple {(l1, l2, degree)} breaks the triangle rule |l1 - l2| <= l <= l1 + l2: nothing "
            "couples"
        )


@functools.lru_cache(maxsize=4096)
def clebsch_gordan(l1: int, l2: int, degree: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """<l1 m1 l2 (m - m1) | l m> for all m1, in the Condon-Shortley convention.

    For fixed m the coefficients of all l are the eigenvectors of the squared total angular momentum, which is
    tridiagonal in m1: stable at degrees where Racah's sum of factorials cancels.

    Args:
        l1: first degree.
        l2: second degree.
        degree: the degree l that they couple to.
        order: m.

    Returns:
        The orders m1 and the coefficients.
    """
    m1 = np.arange(max(-l1, order - l2), min(l1, order + l2) + 1)
    m2 = order - m1
    diagonal = l1 * (l1 + 1) + l2 * (l2 + 1) + 2.0 * m1 * m2
    up, down = m1[:-1], m2[:-1]
    beside = np.sqrt((l1 - up) * (l1 + up + 1.0) * (l2 + down) * (l2 - down + 1.0))
    lowest = max(abs(l1 - l2), abs(order))
    if len(m1) == 1:
        return m1, np.ones(1)
    place = degree - lowest
    _, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside, select="i", select_range=(place, place))
    vector = vectors[:, 0]
    # The convention makes the coefficient of the largest m1 positive. Where it is below rounding, the sign is
    # carried down from it by the recursion that the eigenvector satisfies.
    return m1, vector * _sign_from_top(vector, diagonal, beside, degree * (degree + 1.0))


def _sign_from_top(vector: np.ndarray, diagonal: np.ndarray, beside: np.ndarray, value: float) -> float:
    above, current = 0.0, 1.0
    row = len(vector) - 1
    while row > 0 and abs(vector[row]) < 1e-8:
        step = beside[row] * above if row < len(beside) else 0.0
        below = ((value - diagonal[row]) * current - step) / beside[row - 1]
        scale = max(abs(below), abs(current))
        above, current = current / scale, below / scale
        row -= 1
    return float(np.sign(current) * np.sign(vector[row]))


def _column(coefficients: np.ndarray, degree: int, lmax: int) -> np.ndarray:
    """a_lm for m = -l..l, of shape (..., 2 l + 1)."""
    orders = np.arange(degree + 1)
    positive = coefficients[..., coefficient_places(degree, lmax)]
    signs = np.where(orders[1:] % 2, -1.0, 1.0)
    return np.concatenate([(signs * positive[..., 1:].conj())[..., ::-1], positive], axis=-1)


def couple(
    coefficients: Complex[np.ndarray, "*batch coefficients"], l1: int, l2: int, degree: int, lmax: int
) -> Complex[np.ndarray, "*batch orders"]:
    """(a_{l1} ⊗ a_{l2})_{l m} for m = -l..l: it turns with the field like the field's own degree l."""
    _check_triple(l1, l2, degree, lmax)
    first, second = _column(coefficients, l1, lmax), _column(coefficients, l2, lmax)
    out = np.empty((*first.shape[:-1], 2 * degree + 1), dtype=np.complex128)
    for order in range(-degree, degree + 1):
        m1, weights = clebsch_gordan(l1, l2, degree, order)
        out[..., order + degree] = (weights * first[..., l1 + m1] * second[..., l2 + order - m1]).sum(-1)
    return out


def bispectrum(
    coefficients: Complex[np.ndarray, "*batch coefficients"],
    triples: Iterable[tuple[int, int, int]],
    lmax: int,
) -> Float[np.ndarray, "*batch triples"]:
    """The bispectrum b_{l1 l2 l} at given triples: rotation invariants that also carry phase.

    Args:
        coefficients: of a real field, orders m >= 0, as `harmonics.analyse` returns them.
        triples: (l1, l2, l) with |l1 - l2| <= l <= l1 + l2.
        lmax: the degree that the coefficients go up to.

    Returns:
        One real number a triple: the value where l1 + l2 + l is even, its imaginary part where that is odd.

    Raises:
        InputError: a triple breaks the triangle rule or leaves 0..lmax, or the number of coefficients isn't
            that of `lmax`.
    """
    coefficients = np.asarray(coefficients)
    if coefficients.shape[-1] != coefficient_count(lmax):
        raise InputError(
            f"degree {lmax} has {coefficient_count(lmax)} coefficients, got {coefficients.shape[-1]}"
        )
    values = []
    for l1, l2, degree in triples:
        inner = (couple(coefficients, l1, l2, degree, lmax) * _column(coefficients, degree, lmax).conj()).sum(
            -1
        )
        values.append(inner.imag if (l1 + l2 + degree) % 2 else inner.real)
    return np.stack(values, axis=-1)


def product_factor(l1: int, l2: int, degree: int) -> float:
    """The factor between the degree-l part of a product of two fields and their coupling.

    P_l[f g] = factor * (a_{l1} ⊗ b_{l2})_l for fields f of degree l1 and g of degree l2; the factor is
    sqrt((2 l1 + 1)(2 l2 + 1) / (4 pi (2 l + 1))) <l1 0 l2 0 | l 0>, zero where l1 + l2 + l is odd (Gaunt).
    """
    if (l1 + l2 + degree) % 2 or not abs(l1 - l2) <= degree <= l1 + l2:
        return 0.0
    m1, weights = clebsch_gordan(l1, l2, degree, 0)
    scale = np.sqrt((2 * l1 + 1) * (2 * l2 + 1) / (4 * np.pi * (2 * degree + 1)))
    return float(scale * weights[m1 == 0][0])
