"""Labels are made private first, then a regression that knows nothing of privacy is fitted to them."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from assay.errors import InputError
from assay.methods.cond_dp.accounting import PrivacyReport, gaussian_mu
from assay.methods.cond_dp.baselines.bins import Bins, optimal_bins, randomised_response
from assay.methods.cond_dp.baselines.design import ConditionedDesign, check_ridge, penalised_weights
from assay.methods.cond_dp.baselines.one_shot import PUBLIC
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.validation import PrivateRegressor

# Pure differential privacy has no delta; the checks that all regressors share want one above 0.
NO_DELTA = math.ulp(0.0)


class GaussianLabelNoiseRegressor(PrivateRegressor):
    """Every label gets its own Gaussian noise; ridge regression on the noisy labels.

    Args:
        epsilon, delta: the budget for replacing one label.
        y_range: smallest and largest possible label, declared.
        ridge: penalty as a share of the Gram matrix's eigenvalues; None for a rule that follows the noise.
        conditioner: parameters of the conditioning; None standardises and evens the spectrum out.
        random_state: seed of the noise; None for the operating system's entropy.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        ridge: float | None = None,
        conditioner: PublicConditioner | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.y_range = y_range
        self.ridge = ridge
        self.conditioner = conditioner
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_ridge(self.ridge)

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " d"], float]:
        noise = 2 / gaussian_mu(self.epsilon, self.delta)
        noisy = t + noise * rng.standard_normal(len(t))
        self.privacy_ = PrivacyReport(
            mechanism="Gaussian noise on every label",
            adjacency="replace_label",
            epsilon={"replace_label": float(self.epsilon)},
            delta=self.delta,
            public=PUBLIC,
            notes=self._seed_notes(),
        )
        return _ridge_on_labels(X, noisy, noise**2, self.ridge, self.conditioner)


class RROnBinsRegressor(PrivateRegressor):
    """Randomised response on bins of the label; ridge regression on what comes out. Pure epsilon-DP.

    A tenth of epsilon buys a histogram of the labels on a fixed grid. For that prior the number of bins,
    their borders and the value released for each are chosen to lose least in expectation
    (`bins.optimal_bins`); every label's bin then goes through randomised response, once.

    Args:
        epsilon: the budget for replacing one label.
        y_range: smallest and largest possible label, declared.
        debias: release values whose expectation is the mean of the true bin, instead of the published ones,
            which are nearest in squared error and shrink towards the overall mean.
        grid_size: values of the grid.
        max_bins: the largest number of bins that is tried.
        prior_share: the share of epsilon that the histogram costs.
        ridge: penalty as a share of the Gram matrix's eigenvalues; None for a rule that follows the noise.
        conditioner: parameters of the conditioning; None standardises and evens the spectrum out.
        random_state: seed of the noise; None for the operating system's entropy.

    Attributes:
        bins_: the chosen bins, for labels mapped to [-1, 1].
        randomisation_: (k, k), the probability of releasing bin j (columns) when the truth is bin i (rows).

    Source: Ghazi et al. (2023), Regression with Label Differential Privacy, Algorithms 1 to 3; `debias` is
    ours.
    """

    delta = NO_DELTA

    def __init__(
        self,
        epsilon: float = 1.0,
        y_range: tuple[float, float] | None = None,
        debias: bool = False,
        grid_size: int = 64,
        max_bins: int = 32,
        prior_share: float = 0.1,
        ridge: float | None = None,
        conditioner: PublicConditioner | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.y_range = y_range
        self.debias = debias
        self.grid_size = grid_size
        self.max_bins = max_bins
        self.prior_share = prior_share
        self.ridge = ridge
        self.conditioner = conditioner
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_ridge(self.ridge)
        if not (isinstance(self.grid_size, int) and self.grid_size >= 2):
            raise InputError(f"grid_size is {self.grid_size!r}: pass a whole number >= 2")
        if not (isinstance(self.max_bins, int) and 2 <= self.max_bins <= self.grid_size):
            raise InputError(f"max_bins is {self.max_bins!r}: pass a whole number from 2 to grid_size")
        if not (isinstance(self.prior_share, int | float) and 0 < self.prior_share < 1):
            raise InputError(f"prior_share is {self.prior_share!r}: pass a number between 0 and 1")

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " d"], float]:
        values = np.linspace(-1, 1, self.grid_size)
        prior = self._prior(values, t, rng)
        budget = (1 - self.prior_share) * self.epsilon
        tried = (optimal_bins(values, prior, budget, k) for k in range(2, self.max_bins + 1))
        self.bins_: Bins = min(tried, key=lambda bins: bins.expected_loss)
        self.randomisation_ = randomised_response(budget, len(self.bins_.outputs))
        released = self._released_values()
        cumulative = self.randomisation_.cumsum(axis=1)
        cumulative[:, -1] = 1.0
        drawn = (rng.random(len(t))[:, None] >= cumulative[self.bins_.index(t)]).sum(axis=1)
        self.privacy_ = PrivacyReport(
            mechanism=f"randomised response on {len(released)} bins of the label (from a noisy histogram)",
            adjacency="replace_label",
            epsilon={"replace_label": float(self.epsilon)},
            delta=0.0,
            public=PUBLIC,
            notes=self._seed_notes(),
        )
        mass = np.bincount(self.bins_.index(values), weights=prior, minlength=len(released))
        spread = self.randomisation_ @ released**2 - (self.randomisation_ @ released) ** 2
        return _ridge_on_labels(X, released[drawn], float(mass @ spread), self.ridge, self.conditioner)

    def _prior(
        self, values: Float[np.ndarray, " g"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> Float[np.ndarray, " g"]:
        nearest = np.rint((t + 1) / 2 * (len(values) - 1)).astype(int)
        counts = np.bincount(nearest, minlength=len(values)).astype(float)
        # Replacing a label changes two counts by one.
        if not math.isinf(self.epsilon):
            counts += rng.laplace(scale=2 / (self.prior_share * self.epsilon), size=len(values))
        counts = np.maximum(counts, 0.0)
        total = counts.sum()
        return counts / total if total > 0 else np.full(len(values), 1 / len(values))

    def _released_values(self) -> Float[np.ndarray, " k"]:
        if not self.debias:
            return self.bins_.outputs
        return np.linalg.solve(self.randomisation_, self.bins_.centres)


class WeightedLLPRegressor(PrivateRegressor):
    """Learning from label proportions: noisy mean labels of random bags. Pure epsilon-DP.

    Rows are put into bags at random; every bag releases its mean label with Laplace noise (a label is in one
    bag, so the bags' budgets do not add up). Least squares on the bags' mean features, weighted by bag size.

    Args:
        epsilon: the budget for replacing one label.
        y_range: smallest and largest possible label, declared.
        bag_size: rows in a bag.
        ridge: penalty as a share of the Gram matrix's eigenvalues; None for a rule that follows the noise.
        conditioner: parameters of the conditioning; None standardises and evens the spectrum out.
        random_state: seed of bags and noise; None for the operating system's entropy.

    Source: named as a baseline by the paper; the recipe is ours.
    """

    delta = NO_DELTA

    def __init__(
        self,
        epsilon: float = 1.0,
        y_range: tuple[float, float] | None = None,
        bag_size: int = 8,
        ridge: float | None = None,
        conditioner: PublicConditioner | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.y_range = y_range
        self.bag_size = bag_size
        self.ridge = ridge
        self.conditioner = conditioner
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_ridge(self.ridge)
        if not (isinstance(self.bag_size, int) and self.bag_size >= 1):
            raise InputError(f"bag_size is {self.bag_size!r}: pass a whole number >= 1")

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, " d"], float]:
        design = ConditionedDesign(X, self.conditioner)
        bags = np.array_split(rng.permutation(len(t)), max(1, len(t) // self.bag_size))
        sizes = np.array([len(bag) for bag in bags], dtype=float)
        order, starts = np.concatenate(bags), np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(int)
        rows = np.add.reduceat(design.rows[order], starts) / sizes[:, None]
        means = np.add.reduceat(t[order], starts) / sizes
        # A label moves the mean of its bag by at most 2 / size.
        noise = 2 / (sizes * self.epsilon)
        means = means + rng.laplace(size=len(sizes)) * noise
        weighted = rows * sizes[:, None]
        weights = penalised_weights(
            weighted.T @ rows,
            weighted.T @ means,
            ridge=self.ridge,
            # Of a row of the weighted problem: size x Laplace variance.
            noise_variance=float(np.mean(sizes * 2 * noise**2)),
            n_rows=len(t),
        )
        self.privacy_ = PrivacyReport(
            mechanism=f"Laplace noise on the mean label of {len(bags)} random bags",
            adjacency="replace_label",
            epsilon={"replace_label": float(self.epsilon)},
            delta=0.0,
            public=PUBLIC,
            notes=self._seed_notes(),
        )
        return design.in_original_units(weights)


def _ridge_on_labels(
    X: Float[np.ndarray, "n d"],
    labels: Float[np.ndarray, " n"],
    noise_variance: float,
    ridge: float | None,
    conditioner: PublicConditioner | None,
) -> tuple[Float[np.ndarray, " d"], float]:
    design = ConditionedDesign(X, conditioner)
    weights = penalised_weights(
        design.rows.T @ design.rows,
        design.rows.T @ labels,
        ridge=ridge,
        noise_variance=noise_variance,
        n_rows=len(labels),
    )
    return design.in_original_units(weights)
