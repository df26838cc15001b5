"""The two earlier deep regressions of metric-valued responses: DFR and E2M."""

from __future__ import annotations

import warnings
from numbers import Real

import numpy as np
import torch
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import Isomap
from sklearn.neural_network import MLPRegressor
from torch import nn

from assay.errors import InputError
from assay.methods.desi.base import WeightedFrechetRegressor, check_number, check_whole, frechet_variance
from assay.methods.desi.baselines.frechet import bandwidth_candidates, nd_weights
from assay.methods.desi.index_model import SeededDropout, seeded_linear
from assay.methods.desi.spaces.space import MetricSpace

FOLDS = 5


class DeepFrechet(WeightedFrechetRegressor):
    """Deep Fréchet regression (DFR): a network predicts low-dimensional coordinates, local Fréchet regression
    the rest.

    Isomap on the metric gives every response r coordinates; a network learns them from the predictors; local
    Fréchet regression on the predicted coordinates returns to the space. The bandwidth is chosen by the
    leave-one-out error on coordinates that were predicted out of fold: a network's predictions of its own
    training rows are too good to choose with.

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
            held_out[fold] = self._predict_coordinates(self._network(rng, X[rest], embedded[rest]), X[fold])
        candidates = bandwidth_candidates(n, self.n_components, self.n_bandwidths)
        self.bandwidth_ = min(
            candidates.tolist(), key=lambda h: self._error(_scaled(held_out, held_out), Y, h)
        )
        self.network_ = self._network(rng, X, embedded)
        self._coordinates = self._predict_coordinates(self.network_, X)

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        own = self._coordinates
        return nd_weights(
            _scaled(own, own), _scaled(self._predict_coordinates(self.network_, X), own), self.bandwidth_
        )

    def _error(self, U: Float[np.ndarray, "n r"], Y: Float[np.ndarray, "n ..."], bandwidth: float) -> float:
        weights = nd_weights(U, U, bandwidth, leave_one_out=True)
        return float((self.space.distance(Y, self.space.mean(Y, weights)) ** 2).mean())

    def _predict_coordinates(
        self, network: MLPRegressor, X: Float[np.ndarray, "m p"]
    ) -> Float[np.ndarray, "m r"]:
        return np.reshape(network.predict(X), (len(X), -1))

    def _network(
        self, rng: np.random.Generator, X: Float[np.ndarray, "n p"], targets: Float[np.ndarray, "n r"]
    ) -> MLPRegressor:
        network = MLPRegressor(
            hidden_layer_sizes=self.hidden_layer_sizes,
            alpha=self.alpha,
            max_iter=self.max_epochs,
            random_state=int(rng.integers(2**31)),
        )
        with warnings.catch_warnings():
            # The number of epochs is a setting, not a failure to converge.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return network.fit(X, targets[:, 0] if targets.shape[1] == 1 else targets)


class E2M(WeightedFrechetRegressor):
    """End-to-end metric regression (E2M): a network weighs anchors, the prediction is their weighted Fréchet
    mean.

    The network ends in a softmax over the anchors, which are training responses; it is trained on the mean of
    d^2(Y_i, mean of the anchors under weights(x_i)) plus `entropy_penalty` times the weights' entropy. The
    weights are non-negative, so predictions stay within the geodesic hull of the anchors.

    Args:
        space: the metric space of the responses.
        n_anchors: training responses, drawn at random, that serve as anchors; None for all.
        n_layers: hidden layers.
        hidden: their width.
        dropout: dropout rate.
        lr: Adam's learning rate.
        max_epochs: passes over the rows.
        batch_size: rows in a gradient step.
        entropy_penalty: positive values concentrate the weights on few anchors.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        loss_curve_: the mean loss of every epoch, in units of the Fréchet variance.

    Source: E2M, end-to-end deep learning for metric-valued regression, in the settings of its published code.
    """

    def __init__(
        self,
        space: MetricSpace,
        n_anchors: int | None = None,
        n_layers: int = 4,
        hidden: int = 64,
        dropout: float = 0.3,
        lr: float = 5e-4,
        max_epochs: int = 2000,
        batch_size: int = 32,
        entropy_penalty: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.n_anchors = n_anchors
        self.n_layers = n_layers
        self.hidden = hidden
        self.dropout = dropout
        self.lr = lr
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.entropy_penalty = entropy_penalty
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_whole(self, "n_layers", "hidden", "max_epochs", "batch_size")
        if self.n_anchors is not None:
            check_whole(self, "n_anchors")
        check_number(self, "dropout", below=1)
        check_number(self, "lr", above=0)
        if not (isinstance(self.entropy_penalty, Real) and np.isfinite(self.entropy_penalty)):
            raise InputError(f"entropy_penalty is {self.entropy_penalty!r}: pass a finite number")

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        n, rng = len(X), self._generator()
        anchors = np.arange(n)
        if self.n_anchors is not None and self.n_anchors < n:
            anchors = np.sort(rng.choice(n, self.n_anchors, replace=False))
        self._Y = Y[anchors]
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        self._network = self._build(X.shape[1], len(anchors), generator)
        optimizer = torch.optim.Adam(self._network.parameters(), lr=self.lr)
        inputs, points, targets = torch.from_numpy(X), torch.from_numpy(self._Y), torch.from_numpy(Y)
        unit = frechet_variance(self.space, Y) or 1.0
        self.loss_curve_ = np.empty(self.max_epochs)
        self._network.train()
        for epoch in range(self.max_epochs):
            total = 0.0
            for batch in torch.from_numpy(rng.permutation(n)).split(self.batch_size):
                log_weights = self._network(inputs[batch])
                weights = log_weights.exp()
                loss = self.space.loss(points, weights, targets[batch]).mean() / unit
                if self.entropy_penalty:
                    loss = loss - self.entropy_penalty * (weights * log_weights).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            self.loss_curve_[epoch] = total / n
        self._network.eval()
        for layer in self._network:
            if isinstance(layer, SeededDropout):
                # A generator cannot be pickled everywhere, and predictions need none.
                layer.generator = None

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        with torch.no_grad():
            return self._network(torch.from_numpy(X)).exp().numpy()

    def _build(self, n_predictors: int, n_anchors: int, generator: torch.Generator) -> nn.Sequential:
        layers: list[nn.Module] = []
        width = n_predictors
        for _ in range(self.n_layers):
            layers += [
                seeded_linear(width, self.hidden, generator),
                nn.ReLU(),
                SeededDropout(self.dropout, generator),
            ]
            width = self.hidden
        layers += [seeded_linear(width, n_anchors, generator), nn.LogSoftmax(dim=1)]
        return nn.Sequential(*layers)


def _scaled(
    coordinates: Float[np.ndarray, "m r"], reference: Float[np.ndarray, "n r"]
) -> Float[np.ndarray, "m r"]:
    """In standard deviations of the reference coordinates."""
    spread = reference.std(0)
    return coordinates / np.where(spread > 0, spread, 1.0)
