"""Simulated data with a known direction and a known conditional Fréchet mean.

In every design the response depends on the predictors through the index s = theta' x only. Errors of an
estimate are taken against `truth`, the conditional Fréchet mean without noise, not against the noisy
responses.

Designs `distributions` and `networks` follow the authors' published generators; `spd_matrices` and `spheres`
are ours. Where p exceeds the length of a design's direction, the other predictors have no effect; where it is
smaller, the direction is cut.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit, ndtr, ndtri

from assay.errors import InputError
from assay.methods.desi.spaces import SPD, GraphLaplacian, Sphere, Wasserstein1D
from assay.methods.desi.spaces.space import MetricSpace

Link = Literal["linear", "quadratic", "exponential"]
Design = Literal["distributions", "networks", "spd", "sphere"]

N_NODES = 10


class Simulation(NamedTuple):
    """Rows drawn from a design.

    Attributes:
        space: where the responses live.
        X: predictors.
        Y: responses with noise.
        truth: the conditional Fréchet mean of every row.
        direction: theta, of length one, for the predictors in their own units.
    """

    space: MetricSpace
    X: Float[np.ndarray, "n p"]
    Y: Float[np.ndarray, "n ..."]
    truth: Float[np.ndarray, "n ..."]
    direction: Float[np.ndarray, " p"]


def simulate(design: Design, n: int, *, p: int = 4, link: Link = "quadratic", seed: int) -> Simulation:
    """Draw `n` rows with `p` predictors from a design; `link` matters to `distributions` only.

    Raises:
        InputError: the design or the link is unknown, or p is smaller than 1.
    """
    if p < 1:
        raise InputError(f"p is {p}: pass at least one predictor")
    rng = np.random.default_rng(seed)
    if design == "distributions":
        return distributions(n, p, link, rng)
    designs = {"networks": networks, "spd": spd_matrices, "sphere": spheres}
    if design not in designs:
        raise InputError(f"design {design!r} is unknown: choose distributions, networks, spd or sphere")
    return designs[design](n, p, rng)


def distributions(n: int, p: int, link: Link, rng: np.random.Generator) -> Simulation:
    """Normal distributions N(mu, sigma^2) as quantile functions, in the Wasserstein space.

    mu has mean zeta(s) (s, s^2 or e^s) and standard deviation 0.25; sigma is exponential with mean 1 / (1 +
    e^-s). The conditional Fréchet mean is the normal with the mean of mu and the mean of sigma.
    """
    links = {"linear": lambda s: s, "quadratic": np.square, "exponential": np.exp}
    if link not in links:
        raise InputError(f"link {link!r} is unknown: choose linear, quadratic or exponential")
    X, theta = _equicorrelated(n, p, rng), _direction((0.5, 0.1, 0, -0.5), p)
    s = X @ theta
    location, scale = links[link](s), expit(s)
    mu = location + 0.25 * rng.standard_normal(n)
    sigma = scale * rng.standard_exponential(n)
    space = Wasserstein1D()
    z = ndtri(np.arange(1, space.grid_size + 1) / (space.grid_size + 1))
    return Simulation(
        space, X, mu[:, None] + sigma[:, None] * z, location[:, None] + scale[:, None] * z, theta
    )


def networks(n: int, p: int, rng: np.random.Generator) -> Simulation:
    """Laplacians of weighted networks on ten nodes with a common set of edges, with the Frobenius distance.

    The edge (k, l) has the weight sin((k + l) pi / 20) (2 + s^2) / (1 + |s|) + U(-0.02, 0.02). The edges are
    drawn once for all rows with probability 0.3, until no node is isolated.
    """
    X, theta = rng.uniform(size=(n, p)), _direction((0.1, 0.5, 0, -0.1), p)
    s = X @ theta
    rows, columns = np.triu_indices(N_NODES, 1)
    while True:
        present = rng.uniform(size=len(rows)) < 0.3
        if len(np.union1d(rows[present], columns[present])) == N_NODES:
            break
    # Nodes are numbered from one.
    height = np.sin((rows + columns + 2) * np.pi / (2 * N_NODES)) * present
    mean = ((2 + s**2) / (1 + np.abs(s)))[:, None] * height
    noisy = mean + rng.uniform(-0.02, 0.02, size=mean.shape) * present
    return Simulation(GraphLaplacian(), X, _laplacians(noisy), _laplacians(mean), theta)


def spd_matrices(n: int, p: int, rng: np.random.Generator) -> Simulation:
    """Positive definite 3x3 matrices L L' with the log-Cholesky distance.

    The diagonal of L is exp(0.3 s + 0.1 e), the entries below it are 0.5 sin(pi s) + 0.1 e, every e standard
    normal: the noise is additive in log-Cholesky coordinates, so the conditional Fréchet mean has e = 0.
    """
    X, theta = _equicorrelated(n, p, rng), _direction((0.5, 0.1, 0, -0.5), p)
    s = X @ theta
    log_diagonal = np.repeat(0.3 * s[:, None], 3, 1)
    lower = np.repeat(0.5 * np.sin(np.pi * s)[:, None], 3, 1)
    noisy = (log_diagonal + 0.1 * rng.standard_normal((n, 3)), lower + 0.1 * rng.standard_normal((n, 3)))
    return Simulation(SPD(), X, _from_cholesky(*noisy), _from_cholesky(log_diagonal, lower), theta)


def spheres(n: int, p: int, rng: np.random.Generator) -> Simulation:
    """Points of the positive orthant of the sphere S^2, the square roots of compositions with three parts.

    The conditional Fréchet mean m(s) runs along a curve inside the orthant. A response is Exp_m(v) with v
    uniform in the tangent disc of radius 0.2: the noise is symmetric about m and keeps clear of the orthant's
    border, so m is exactly the conditional Fréchet mean.
    """
    X, theta = _equicorrelated(n, p, rng), _direction((0.5, 0.1, 0, -0.5), p)
    s = X @ theta
    polar, azimuth = np.pi / 4 + 0.3 * np.sin(np.pi * s / 2), np.pi / 4 + 0.4 * np.sin(np.pi * s)
    truth = np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], 1)
    along = np.stack([np.cos(polar) * np.cos(azimuth), np.cos(polar) * np.sin(azimuth), -np.sin(polar)], 1)
    across = np.stack([-np.sin(azimuth), np.cos(azimuth), np.zeros(n)], 1)
    radius, turn = 0.2 * np.sqrt(rng.uniform(size=n)), 2 * np.pi * rng.uniform(size=n)
    tangent = np.cos(turn)[:, None] * along + np.sin(turn)[:, None] * across
    Y = np.cos(radius)[:, None] * truth + np.sin(radius)[:, None] * tangent
    return Simulation(Sphere(positive=True), X, Y, truth, theta)


def _equicorrelated(n: int, p: int, rng: np.random.Generator) -> Float[np.ndarray, "n p"]:
    """Uniform on [-1, 1] each: 2 Phi(Z) - 1 with Z standard normal, every pair correlated with 0.25."""
    common = rng.standard_normal((n, 1))
    return 2 * ndtr(0.5 * common + np.sqrt(0.75) * rng.standard_normal((n, p))) - 1


def _direction(leading: tuple[float, ...], p: int) -> Float[np.ndarray, " p"]:
    theta = np.zeros(p)
    theta[: len(leading)] = leading[:p]
    return theta / np.linalg.norm(theta)


def _laplacians(edges: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n q q"]:
    rows, columns = np.triu_indices(N_NODES, 1)
    L = np.zeros((len(edges), N_NODES, N_NODES))
    L[:, rows, columns] = L[:, columns, rows] = -edges
    diagonal = np.arange(N_NODES)
    L[:, diagonal, diagonal] = -L.sum(2)
    return L


def _from_cholesky(
    log_diagonal: Float[np.ndarray, "n q"], lower: Float[np.ndarray, "n e"]
) -> Float[np.ndarray, "n q q"]:
    n, q = log_diagonal.shape
    L = np.zeros((n, q, q))
    rows, columns = np.tril_indices(q, -1)
    L[:, rows, columns] = lower
    L[:, np.arange(q), np.arange(q)] = np.exp(log_diagonal)
    return L @ L.transpose(0, 2, 1)
