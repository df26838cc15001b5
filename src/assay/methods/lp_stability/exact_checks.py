"""Parts of the study that need no tolerance for chance: shortcuts beside refits, theorems by enumeration.

`printed` and `corrected` arms speak of Theorems 3.9, 3.10 and 3.14 of Lei, Bonnerjee, Han and Wu (2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.methods.lp_stability import transductive
from assay.methods.lp_stability.concentration import tail
from assay.methods.lp_stability.envelopes import DeclaredEnvelope, FiniteEnvelope
from assay.methods.lp_stability.witnesses import GaussianMean, Witness, meta_witness, transductive_witness

Measured = dict[str, float]
ORDERS = (2.0, 3.0, 4.0)
POINTS, CHOSEN = 8, 4
TASK_VALUES, TASKS = 3, 5
# How much of the mean a learner uses.
SHRINKAGE = 0.5
# Distances at which an enumerated tail is compared with a bound.
DISTANCES = 12


def shortcut_error(*, learner: str, seed: int) -> Measured:
    """The largest difference between a shortcut's predictions and those of fits to the changed rows."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    from assay.methods.lp_stability.ball_ridge import BallRidge
    from assay.methods.lp_stability.fits import perturbable_fits

    estimator: Any = {
        "ridge": Ridge(alpha=0.3),
        "ball-ridge": BallRidge(alpha=0.3, radius=1.0),
        "kernel-ridge": KernelRidge(kernel="rbf"),
        "neighbours": KNeighborsRegressor(n_neighbors=5, weights="distance"),
    }[learner]
    rng = np.random.default_rng(seed)
    X, points, fresh = (rng.normal(size=(size, 4)) for size in (60, 40, 30))
    y, labels = (rng.standard_t(3, size=size) for size in (60, 30))
    rows = rng.integers(60, size=30)
    fast = perturbable_fits(estimator, X, y, points)
    slow = perturbable_fits(estimator, X, y, points, shortcut="refit")
    if fast.name == slow.name:
        raise RuntimeError(f"{learner} has no shortcut")
    pairs = [
        (fast.replace(rows, fresh, labels), slow.replace(rows, fresh, labels)),
        (fast.leave_out(np.unique(rows)), slow.leave_out(np.unique(rows))),
    ]
    gaps = [np.abs(ours.at_points - theirs.at_points).max() for ours, theirs in pairs]
    gaps.append(np.abs(pairs[0][0].at_new - pairs[0][1].at_new).max())
    return {"difference": float(max(gaps))}


def coefficient_error(*, pairs: int, seed: int) -> Measured:
    """The relative error of a measured L_2 coefficient whose true value is known, from `pairs` swaps."""
    witness = GaussianMean(100)
    changes = witness.sample_changes(pairs, np.random.default_rng(seed))
    measured = math.sqrt(float(np.mean(changes**2)))
    return {"log_error": math.log(abs(measured / witness.change_norm() - 1)), "measured": measured}


def understated_moment(*, nu: float, p: float, pairs: int, seed: int) -> Measured:
    """How often the sample p-th moment of |Z - Z'|, Z of the law t_nu, is below the true one."""
    from assay.methods.lp_stability.simulate import StudentSwap

    swap = StudentSwap(nu)
    draws = swap.sample(1000 * pairs, np.random.default_rng(seed)).reshape(1000, pairs)
    share = (draws**p).mean(axis=1) / math.exp(swap.log_moments(p))
    return {"below": float(np.mean(share < 1)), "median_share": float(np.median(share))}


def witness_violation(arm: str, *, theorem: str) -> Measured:
    """By how much a theorem's probability bound is below the exact probability in its witness."""
    found: Witness = transductive_witness() if theorem == "3.10" else meta_witness()
    envelope = float(found.printed_envelope if arm == "printed" else found.corrected_envelope)
    z = float(found.threshold)
    if envelope == 0:
        bound = 0.0
    elif theorem == "3.10":
        bound = transductive.tail(z, {p: envelope**p for p in ORDERS}, 1, 1, sided=2)
    else:
        moments = {p: envelope**p for p in ORDERS}
        bound = tail(z, DeclaredEnvelope(moments, bound=envelope), 1, sided=2)
    exact = float(found.exceedance)
    return {
        "violation": max(0.0, exact - bound),
        "beyond_envelope": max(0.0, float(found.true_swap) - envelope),
        "exact": exact,
        "bound": bound,
    }


def enumerated_violation(arm: str, *, theorem: str, seed: int) -> Measured:
    """The same on a random small problem, all of whose outcomes are enumerated."""
    rng = np.random.default_rng(seed)
    if theorem == "3.14":
        return _enumerated_tasks(arm, rng)
    labels = rng.standard_t(3, size=POINTS)
    return _enumerated_subsets(arm, theorem, labels)


def _enumerated_subsets(arm: str, theorem: str, labels: Float[np.ndarray, " N"]) -> Measured:
    """Four of eight points are for training: a shrunken mean, judged on the others by the absolute loss."""
    m, u = CHOSEN, len(labels) - CHOSEN
    subsets = list(combinations(range(len(labels)), m))
    masks = np.zeros((len(subsets), len(labels)), dtype=bool)
    masks[np.arange(len(subsets))[:, None], subsets] = True
    centre = SHRINKAGE * np.array([labels[mask].mean() for mask in masks])
    losses = np.abs(labels - centre[:, None])
    f = np.array([row[~mask].mean() - row[mask].mean() for row, mask in zip(losses, masks, strict=True)])
    distances = np.abs(labels[:, None] - labels)
    distinct = ~np.eye(len(labels), dtype=bool)
    # The mean moves by SHRINKAGE |y - y'| / m, the loss of one model between two points by |y - y'|.
    factor = 2 * SHRINKAGE / m
    if theorem == "3.10" and arm == "printed":
        factor += abs(1 / u - 1 / m)
    else:
        factor += 1 / u + 1 / m
    pairs = factor * distances[distinct]
    moments = {p: float(np.mean(pairs**p)) for p in ORDERS}

    def bound(z: float) -> float:
        if arm == "corrected":
            return transductive.tail(z, moments, m, u, sided=2)
        return min(
            transductive.printed_tail(z, m, u, p, moment_2=moments[2.0], moment_p=moments[p]) for p in ORDERS
        )

    measured = _largest_violation(np.abs(f - f.mean()), np.full(len(f), 1 / len(f)), bound)
    return measured | {"beyond_envelope": _beyond(f, masks, factor * distances)}


def _beyond(f: Float[np.ndarray, " k"], masks: Any, envelope: Float[np.ndarray, "N N"]) -> float:
    """By how much a swap of i for j changes f beyond envelope[i, j], at most, as a share of it."""
    beyond = 0.0
    for a, b in combinations(range(len(f)), 2):
        moved = np.flatnonzero(masks[a] != masks[b])
        if len(moved) == 2:
            allowed = envelope[moved[0], moved[1]]
            change = abs(f[a] - f[b])
            beyond = max(beyond, float(change / allowed - 1) if allowed > 0 else float(change > 1e-12))
    # Rounding is no violation.
    return beyond if beyond > 1e-9 else 0.0


def _enumerated_tasks(arm: str, rng: np.random.Generator) -> Measured:
    """Five tasks out of three possible point masses; the parameter is a shrunken mean of the tasks."""
    values, law = rng.standard_t(3, size=TASK_VALUES), rng.dirichlet(np.ones(TASK_VALUES))
    outcomes = np.array(list(product(range(TASK_VALUES), repeat=TASKS)))
    probabilities = law[outcomes].prod(axis=1)
    parameter = SHRINKAGE * values[outcomes].mean(axis=1)
    risk = np.abs(values - parameter[:, None]) @ law
    gaps = risk - np.abs(values[outcomes] - parameter[:, None]).mean(axis=1)
    if arm == "printed":
        # Within a task all observations are equal: every printed coefficient, and with it the bound, is zero.
        return _largest_violation(np.abs(gaps), probabilities, lambda z: 0.0)
    distances = np.abs(values[:, None] - values)
    bias = SHRINKAGE / TASKS * float(law @ distances @ law)
    envelope = FiniteEnvelope((2 * SHRINKAGE + 1) / TASKS * distances, law)
    return _largest_violation(
        np.maximum(np.abs(gaps) - bias, 0.0), probabilities, lambda z: tail(z, envelope, TASKS, sided=2)
    )


def _largest_violation(
    sizes: Float[np.ndarray, " k"], probabilities: Float[np.ndarray, " k"], bound: Callable[[float], float]
) -> Measured:
    """The largest of P(size >= z) minus the bound at z, or 0, over a dozen of the attained distances z, the
    least and the greatest among them."""
    attained = np.unique(sizes[sizes > 1e-12])
    chosen = attained[np.unique(np.linspace(0, len(attained) - 1, DISTANCES).round().astype(int))]
    excesses = [float(probabilities[sizes >= z].sum()) - bound(float(z)) for z in chosen]
    return {"violation": max(0.0, *excesses)}


def network_change(*, m: int, copies: int, epochs: int, seed: int) -> Measured:
    """The L_2 norm of the largest change of a loss when one training row of a small network is swapped."""
    import torch
    from torch import nn
    from torch.func import functional_call, vmap

    from assay.methods.lp_stability.coupled_descent import coupled_sgd

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.default_rng(seed)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        X = rng.normal(size=(count, 5)).astype(np.float32)
        y = np.sin(X[:, 0]) + 0.5 * rng.standard_t(5, size=count)
        return torch.tensor(X, device=device), torch.tensor(y, dtype=torch.float32, device=device)[:, None]

    sample, fresh, judged = rows(m), rows(copies), rows(200)
    network = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    network.to(device)
    trained = coupled_sgd(
        network,
        nn.functional.huber_loss,
        sample,
        torch.tensor(rng.integers(m, size=copies), device=device),
        fresh,
        steps=[0.05] * (epochs * (m // 10)),
        batch_size=10,
        seed=seed,
    )
    predictions = vmap(lambda parameters: functional_call(network, parameters, (judged[0],)))(trained)
    losses = (predictions - judged[1]).abs()[:, :, 0]
    largest = (losses[1:] - losses[0]).abs().amax(dim=1).double()
    norm = float(largest.square().mean().sqrt())
    return {"change": norm, "log_change": math.log(norm)}
