"""The two earlier deep regressions of metric-valued responses: DFR and E2M."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from jaxtyping import Float
from sklearn.manifold import Isomap
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn

from assay.errors import InputError
from assay.methods.desi.base import WeightedFrechetRegressor, check_whole
from assay.methods.desi.baselines.frechet import bandwidth_candidates, nd_weights
from assay.methods.desi.index_model import SeededDropout
from assay.methods.desi.spaces.space import MetricSpace

FOLDS = 5


class DeepFrechet(WeightedFrechetRegressor):
    """Deep Fréchet regression (DFR): a network predicts low-dimensional coordinates, local Fréchet regression the rest.

    Isomap on the metric gives every response r coordinates; a network learns them from the predictors; local Fréchet
    regression on the predicted coordinates returns to the space. The bandwidth is chosen by the leave-one-out error on
    coordinates that were predicted out of fold: a network's predictions of its own training rows are too good to choose
    with.

    Args:
        space: the metric space of the responses.
        n_components: r, the number of coordinates.
        n_neighbors: of Isomap's graph.
        hidden_layer_sizes: of the network.
        alpha: the network's squared penalty.
        max_epochs: of the network.
        n_bandwidths: candidates for the bandwidth.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        network_: the fitted `MLPRegressor`.
        bandwidth_: in standard deviations of the predicted coordinates.

    Source: Iao, Zhou and Müller (2025), Deep Fréchet regression.
    """

    def __init__(
        self,
        space: MetricSpace,
        n_components: int = 2,
        n_neighbors: int = 10,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        alpha: float = 1e-3,
        max_epochs: int = 500,
        n_bandwidths: int = 10,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.hidden_layer_sizes = hidden_layer_sizes
        self.alpha = alpha
        self.max_epochs = max_epochs
        self.n_bandwidths = n_bandwidths
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_whole(self, "n_components", "n_neighbors", "max_epochs", "n_bandwidths")

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        n, rng = len(X), self._generator()
        isomap = Isomap(
            n_neighbors=min(self.n_neighbors, n - 1), n_components=self.n_components, metric="precomputed"
        )
        with warnings.catch_warnings():
            # Isomap joins the parts of a graph that falls apart, which is what is wanted here.
            warnings.filterwarnings("ignore", message="The number of connected components")
            embedded = isomap.fit_transform(self.space.pairwise(Y, Y))
        spread = embedded.std(0)
        embedded = (embedded - embedded.mean(0)) / np.where(spread > 0, spread, 1.0)
        folds = np.array_split(rng.permutation(n), min(FOLDS, n))
        held_out = np.empty_like(embedded)
        for fold in folds:
            rest = np.setdiff1d(np.arange(n), fold)
            held_out[fold] = self._network(rng, X[rest], embedded[rest])(X[fold])
        candidates = bandwidth_candidates(n, self.n_components, self.n_bandwidths)
        self.bandwidth_ = min(candidates.tolist(), key=lambda h: self._error(_scaled(held_out, held_out), Y, h))
        self._predicted = self._network(rng, X, embedded)
        self._coordinates = self._predicted(X)

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        own = self._coordinates
        return nd_weights(_scaled(own, own), _scaled(self._predicted(X), own), self.bandwidth_)

    def _error(self, U: Float[np.ndarray, "n r"], Y: Float[np.ndarray, "n ..."], bandwidth: float) -> float:
        weights = nd_weights(U, U, bandwidth, leave_one_out=True)
        return float((self.space.distance(Y, self.space.mean(Y, weights)) ** 2).mean())
