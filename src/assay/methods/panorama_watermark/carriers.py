"""Covariant carriers: directions in the payload band that are made from the image and turn with it.

Two keyed filters of the whitened reference band give two fields; the payload-band part of their product is a
vector that a rotation of the image turns by the same orthogonal matrix as the image's own payload band. The
inner product of the two, the soft value of a bit, is therefore an invariant. It is a keyed weighted sum of
bispectral numbers: a product of two fields couples their degrees by Clebsch-Gordan (see `bispectral`).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex, Float

from assay.errors import InputError
from assay.methods.panorama_watermark.harmonics import (
    Grid,
    analyse,
    band_degrees,
    band_vector,
    degrees_and_orders,
    power_spectrum,
    product_grid,
    synthesise,
)
from assay.methods.panorama_watermark.schedule import Band, Schedule

# A reference band with less power than this (grey levels squared, summed over degrees) is rounding, not
# a picture.
WEAKEST_REFERENCE = 1e-2
# Carriers of a picture span as many dimensions as there are bits; those of a zonal one nearly coincide.
SMALLEST_EFFECTIVE_RANK = 0.3


def carrier_grid(band: Band) -> Grid:
    """The smallest grid that is exact for all that is integrated here.

    That is a product of two reference fields and a payload field, and the square of a product of two
    reference fields (the norm), which has the higher degree, because the payload ends at twice the
    reference's top.
    """
    top = band.reference[1]
    return product_grid(top, top, 2 * top)


def whitened_reference(
    coefficients: Complex[np.ndarray, " coefficients"], band: Band
) -> tuple[Complex[np.ndarray, " reference_coefficients"], int]:
    """The reference band with every degree at unit mean power, as coefficients up to the band's top.

    The divisor is an invariant, so what is divided stays covariant; gain and most of gamma drop out.

    Raises:
        InputError: the reference band is empty (a constant image).
    """
    low, high = band.reference
    degrees, _ = degrees_and_orders(band.lmax)
    wanted = degrees <= high
    part = coefficients[wanted]
    mean_power = power_spectrum(part, high) / (2 * np.arange(high + 1) + 1)
    if mean_power[low:].sum() < WEAKEST_REFERENCE:
        raise InputError(
            "the host carries no direction: the image is constant, or nearly, in the band that the mark "
            "is made from; such an image cannot be marked"
        )
    scale = np.zeros(high + 1)
    scale[low:] = 1.0 / np.sqrt(mean_power[low:] + 1e-9)
    return part * scale[degrees[wanted]], high


def _filtered_fields(
    reference: np.ndarray, high: int, low: int, filters: np.ndarray, grid: Grid
) -> Float[np.ndarray, "filters rings columns"]:
    degrees, _ = degrees_and_orders(high)
    padded = np.zeros((len(filters), high + 1))
    padded[:, low:] = filters
    return synthesise(reference * padded[:, degrees], grid, high)


def keyed_fields(
    coefficients: Complex[np.ndarray, " coefficients"], schedule: Schedule, grid: Grid
) -> tuple[Float[np.ndarray, "first rings columns"], Float[np.ndarray, "second rings columns"]]:
    """The two families of filtered reference fields on a grid."""
    reference, high = whitened_reference(coefficients, schedule.band)
    low = schedule.band.reference[0]
    count = len(schedule.first_filters)
    filters = np.concatenate([schedule.first_filters, schedule.second_filters])
    fields = _filtered_fields(reference, high, low, filters, grid)
    return fields[:count], fields[count:]


def carriers(
    coefficients: Complex[np.ndarray, " coefficients"], schedule: Schedule, grid: Grid | None = None
) -> Float[np.ndarray, "bits numbers"]:
    """The unit carriers of all bits as real vectors of the payload band.

    Args:
        coefficients: of the image's luma, up to the band's top degree.
        schedule: the key's.
        grid: where products are taken; `carrier_grid` by default.

    Raises:
        InputError: the image has no directions to offer (constant, zonal or nearly empty).
    """
    band = schedule.band
    grid = grid or carrier_grid(band)
    first, second = keyed_fields(coefficients, schedule, grid)
    low, high = band.payload
    vectors = np.empty((schedule.bits, band.dimension))
    for start in range(0, schedule.bits, 32):
        chosen = slice(start, start + 32)
        products = first[schedule.first[chosen]] * second[schedule.second[chosen]]
        vectors[chosen] = band_vector(analyse(products, grid, high), high, low, high)
    vectors *= schedule.payload_filters[schedule.payload_choice][:, band_degrees(low, high) - low]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-300
    return vectors


def effective_rank(gram: Float[np.ndarray, "bits bits"]) -> float:
    """(sum of eigenvalues)^2 / sum of squared eigenvalues: `bits` for orthogonal carriers, 1 for equal."""
    return float(np.trace(gram) ** 2 / np.sum(gram**2))


def check_carriers(gram: Float[np.ndarray, "bits bits"]) -> None:
    """Refuse carriers that nearly coincide.

    Raises:
        InputError: the effective rank is under 30% of the number of bits.
    """
    rank = effective_rank(gram)
    if rank < SMALLEST_EFFECTIVE_RANK * len(gram):
        raise InputError(
            f"the host carries no direction: its {len(gram)} carriers span only {rank:.0f} dimensions (the "
            "image is nearly empty or the same along every parallel); another band or a shorter code may work"
        )


def soft_values(
    coefficients: Complex[np.ndarray, " coefficients"], schedule: Schedule, grid: Grid | None = None
) -> Float[np.ndarray, " bits"]:
    """The inner product of every bit's carrier with the image's payload band, without making the carriers.

    The integral of first field x second field x filtered payload field is that inner product before the
    carrier is normalised, and one matrix product a payload filter gives it for all pairs of fields. The norm
    is taken of the whole product of the two fields, which is the carrier's up to a factor that hardly varies
    between bits; signs are exact.

    Raises:
        InputError: the image is constant, or nearly.
    """
    band = schedule.band
    grid = grid or carrier_grid(band)
    first, second = keyed_fields(coefficients, schedule, grid)
    degrees, _ = degrees_and_orders(band.lmax)
    low = band.payload[0]
    filters = np.zeros((len(schedule.payload_filters), band.lmax + 1))
    filters[:, low:] = schedule.payload_filters
    payload = synthesise(coefficients * filters[:, degrees], grid, band.lmax)
    payload *= grid.weights[:, None]
    flat_first = first.reshape(len(first), -1)
    flat_second = second.reshape(len(second), -1)
    integrals = np.empty((len(payload), len(first), len(second)))
    for q, field in enumerate(payload.reshape(len(payload), -1)):
        integrals[q] = (flat_first * field) @ flat_second.T
    weights = np.repeat(grid.weights, grid.columns)
    norms = np.sqrt((flat_first**2 * weights) @ (flat_second**2).T)
    chosen = (schedule.first, schedule.second)
    share = np.sqrt(band.dimension / (2 * band.reference[1] + 1) ** 2)
    return integrals[(schedule.payload_choice, *chosen)] / (norms[chosen] * share + 1e-300)
