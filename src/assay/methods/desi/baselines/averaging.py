"""Predictions by averaging over similar training rows: forest, nearest neighbours, and all rows alike.

Their weights are non-negative, so that the weighted Fréchet means are the mildest that a space can be asked
for.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import sparse
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import NearestNeighbors

from assay.errors import InputError
from assay.methods.desi.base import WeightedFrechetRegressor, check_whole, coordinates
from assay.methods.desi.spaces.space import MetricSpace


class FrechetMean(WeightedFrechetRegressor):
    """Predicts the Fréchet mean of the training responses, whatever the predictors: the floor of every
    comparison.

    Args:
        space: the metric space of the responses.
    """

    def __init__(self, space: MetricSpace) -> None:
        self.space = space

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        return np.full((len(X), len(self._Y)), 1 / len(self._Y))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class FrechetKNN(WeightedFrechetRegressor):
    """Predicts the Fréchet mean of the nearest rows, in the Euclidean distance of the standardised
    predictors.

    Args:
        space: the metric space of the responses.
        n_neighbors: how many rows; all of them where there are fewer.
        weights: `"uniform"`, or `"distance"` for weights inverse to the distance.
    """

    def __init__(
        self, space: MetricSpace, n_neighbors: int = 10, weights: Literal["uniform", "distance"] = "uniform"
    ) -> None:
        self.space = space
        self.n_neighbors = n_neighbors
        self.weights = weights

    def _check_parameters(self) -> None:
        check_whole(self, "n_neighbors")
        if self.weights not in ("uniform", "distance"):
            raise InputError(f"weights is {self.weights!r}: pass 'uniform' or 'distance'")

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        self._neighbors = NearestNeighbors(n_neighbors=min(self.n_neighbors, len(X))).fit(X)

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        distances, rows = self._neighbors.kneighbors(X)
        if self.weights == "uniform":
            values = np.full_like(distances, 1 / distances.shape[1])
        else:
            # Rows at no distance, if there are any, share all the weight.
            same = distances == 0
            values = np.where(same.any(1, keepdims=True), same, 1 / np.where(same, 1.0, distances))
            values = values / values.sum(1, keepdims=True)
        weights = np.zeros((len(X), len(self._Y)))
        np.put_along_axis(weights, rows, values, axis=1)
        return weights


class FrechetForest(WeightedFrechetRegressor):
    """A random forest for responses in a metric space.

    The trees are grown on coordinates of the responses (exact ones where the space is Euclidean, else
    classical scaling of the distances), so that a split maximises the decrease of the Fréchet variance. A
    prediction is the Fréchet mean of the training responses, weighted by how often they share a leaf with the
    target.

    Args:
        space: the metric space of the responses.
        n_estimators: number of trees.
        min_samples_leaf: rows in a leaf at least.
        max_features: share of the predictors that a split may choose from, as in scikit-learn.
        n_components: coordinates of a space that has no exact ones.
        random_state: seed, `RandomState` or None, as in scikit-learn.

    Attributes:
        forest_: the underlying `RandomForestRegressor`.

    Source: Capitaine, Bigot, Thiébaut and Genuer (2024), Fréchet random forests; the weights are those of
    Qiu, Yu and Zhu (2024), random forest weighted local Fréchet regression, without its local-linear step.
    """

    def __init__(
        self,
        space: MetricSpace,
        n_estimators: int = 200,
        min_samples_leaf: int = 5,
        max_features: float = 1.0,
        n_components: int = 10,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.space = space
        self.n_estimators = n_estimators
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.n_components = n_components
        self.random_state = random_state

    def _check_parameters(self) -> None:
        check_whole(self, "n_estimators", "min_samples_leaf", "n_components")

    def _learn(self, X: Float[np.ndarray, "n p"], Y: Float[np.ndarray, "n ..."]) -> None:
        seed = int(self._generator().integers(2**31))
        self.forest_ = RandomForestRegressor(
            n_estimators=self.n_estimators,
            min_samples_leaf=self.min_samples_leaf,
            max_features=self.max_features,
            random_state=seed,
        )
        targets = coordinates(self.space, Y, self.n_components)
        self.forest_.fit(X, targets[:, 0] if targets.shape[1] == 1 else targets)
        # How often a tree's bootstrap sample holds a row: the tree's leaf means count it so often.
        drawn = [np.bincount(rows, minlength=len(X)) for rows in self.forest_.estimators_samples_]
        members = self._leaves(X, np.stack(drawn, axis=1))
        # Every leaf's weights sum to one; no leaf is empty, because a tree grows on its bootstrap sample.
        totals = np.asarray(members.sum(0)).ravel()
        self._leaf_weights = members @ sparse.diags_array(1 / np.where(totals > 0, totals, 1.0))

    def _weights(self, X: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m n"]:
        together = sparse.csr_array(
            self._leaves(X, np.ones((len(X), self.n_estimators))) @ self._leaf_weights.T
        )
        return together.toarray() / self.n_estimators

    def _leaves(self, X: Float[np.ndarray, "m p"], values: Float[np.ndarray, "m trees"]) -> sparse.csr_array:
        """A matrix of rows x nodes of all trees, with `values` where a row falls into a leaf."""
        nodes = np.array([tree.tree_.node_count for tree in self.forest_.estimators_])
        columns = self.forest_.apply(X) + np.concatenate([[0], np.cumsum(nodes)[:-1]])
        pointers = np.arange(0, columns.size + 1, columns.shape[1])
        entries = (values.ravel().astype(np.float64), columns.ravel(), pointers)
        return sparse.csr_array(entries, shape=(len(X), int(nodes.sum())))
