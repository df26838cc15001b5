"""A private multilayer perceptron or factorisation machine on conditioned features, for scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.errors import InputError
from assay.methods.cond_dp.accounting import Adjacency
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.conditioning import plain_state_dict
from assay.methods.cond_dp.engine import CondPrivacyEngine
from assay.methods.cond_dp.linear import Optimizer
from assay.methods.cond_dp.models import FactorizationMachine, MultilayerPerceptron, initialize
from assay.methods.cond_dp.regressors import CondDPRegressor
from assay.methods.cond_dp.validation import check_y_range

Network = Literal["mlp", "fm"]


class CondDPNetworkRegressor(CondDPRegressor):
    """A network trained privately on conditioned public features (Cond-DP, Switch-Cond-DP).

    The network's first layer is linear in the features. Its public part gets conditioned inputs until
    `switch_epoch`; then the conditioner is folded into the weights and training goes on without. Afterwards
    everything is folded into the first layer: `module_` takes features in their own units.

    Args:
        model: `"mlp"`, rectified layers; `"fm"`, a factorisation machine.
        hidden: widths of the layers of an MLP.
        factors: of a factorisation machine.
        switch_epoch: the last epoch with the conditioner; None for all of them.
        switch_lr: learning rate after the switch; None for `lr`.
        epsilon, delta, y_range, adjacency, epochs, lr, clip, optimizer, batch, conditioner, private_columns,
            bias_correction, random_state: see `CondDPRegressor`. `PublicConditioner(power=0,
            standardize=True)` makes it DP-SGD on standardised features.

    Attributes:
        module_: the network, an ordinary `nn.Module` in float64 on features in their own units, private
            columns last, mapped to their declared ranges; it predicts labels mapped to [-1, 1].
        conditioner_, privacy_, n_labels_clipped_, n_features_in_, feature_names_in_: see `CondDPRegressor`.

    Source: Private Learning with Public Feature Conditioning (ICML 2026), section 3.
    """

    def __init__(
        self,
        model: Network = "mlp",
        hidden: Sequence[int] = (64, 32),
        factors: int = 8,
        switch_epoch: int | None = None,
        switch_lr: float | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        y_range: tuple[float, float] | None = None,
        adjacency: Adjacency = "replace_label",
        epochs: int = 64,
        lr: float = 0.01,
        clip: float = 0.3,
        optimizer: Optimizer = "adam",
        batch: Literal["full"] | int = "full",
        conditioner: PublicConditioner | None = None,
        private_columns: Mapping[str | int, tuple[float, float]] | None = None,
        bias_correction: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            y_range=y_range,
            adjacency=adjacency,
            epochs=epochs,
            lr=lr,
            clip=clip,
            optimizer=optimizer,
            batch=batch,
            conditioner=conditioner,
            private_columns=private_columns,
            bias_correction=bias_correction,
            random_state=random_state,
        )
        self.model = model
        self.hidden = hidden
        self.factors = factors
        self.switch_epoch = switch_epoch
        self.switch_lr = switch_lr

    def predict(self, X: Any) -> Float[np.ndarray, " m"]:
        """The network's predictions in the units of the labels.

        Raises:
            InputError: `X` has other columns than in training, or values that are not finite.
            sklearn.exceptions.NotFittedError: `fit` was not called.
        """
        check_is_fitted(self, "module_")
        values = self._features(X, reset=False)
        columns = self._columns(values)
        inputs = np.hstack([values[:, columns.public], columns.mapped_private(values)])
        with torch.no_grad():
            outputs = self.module_(torch.from_numpy(inputs))
        middle, half = self._label_map
        return outputs.numpy() * half + middle

    def restore_network(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set the network's weights, as `model_file` read them, without fitting.

        Raises:
            InputError: they are not those of such a network.
        """
        network = self._network(self._columns(np.empty((0, self.n_features_in_)))).double()
        try:
            network.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
        except RuntimeError as error:
            raise InputError(f"the weights are not those of such a network: {error}") from error
        low, high = check_y_range(self.y_range)
        self._keep(network.eval().requires_grad_(False), (low + high) / 2, (high - low) / 2)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.model not in get_args(Network):
            raise InputError(f"model is {self.model!r}: choose one of {', '.join(get_args(Network))}")
        widths = [*self.hidden, self.factors] if isinstance(self.hidden, Sequence) else [0]
        if len(widths) < 2 or not all(isinstance(width, int | np.integer) and width >= 1 for width in widths):
            raise InputError(
                f"hidden is {self.hidden!r} and factors {self.factors!r}: pass whole numbers >= 1"
            )
        if self.switch_epoch is not None and not 0 <= self.switch_epoch <= self.epochs:
            raise InputError(
                f"switch_epoch is {self.switch_epoch!r}: pass 0 to epochs ({self.epochs}), or None"
            )
        if self.switch_lr is not None and not self.switch_lr > 0:
            raise InputError(f"switch_lr is {self.switch_lr!r}: pass a number above 0, or None")

    def _fit(
        self, X: Float[np.ndarray, "n d"], t: Float[np.ndarray, " n"], rng: np.random.Generator
    ) -> nn.Module:
        columns = self._columns(X)
        conditioner = self.conditioner_ = self._fitted_conditioner(X, columns)
        inputs = np.hstack([conditioner.standardized(X[:, columns.public]), columns.mapped_private(X)])
        rows = torch.from_numpy(inputs).float(), torch.from_numpy(t).float()
        starting, noise, sampling = (
            torch.Generator().manual_seed(int(s)) for s in rng.integers(2**63, size=3)
        )
        network = self._network(columns)
        initialize(network, starting)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.SGD
        size = len(t) if self.batch == "full" else min(self.batch, len(t))
        with warnings.catch_warnings():
            # It says that noise is not from a cryptographic generator, as for all regressors here.
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            engine = CondPrivacyEngine()
        module, optimizer, criterion, _ = engine.make_private_with_epsilon(
            module=network,
            optimizer=kind(network.parameters(), lr=self.lr),
            criterion=nn.MSELoss(),
            data_loader=DataLoader(TensorDataset(*rows), batch_size=size, generator=sampling),
            target_epsilon=float(self.epsilon),
            target_delta=float(self.delta),
            epochs=int(self.epochs),
            max_grad_norm=float(self.clip),
            conditioner=conditioner.on_standardized(),
            first_layer="first.public",
            adjacency=self.adjacency,
            sampling="full" if size == len(t) else "poisson",
            bias_correction=self.bias_correction,
            noise_generator=noise,
            grad_sample_mode="ghost",
        )
        with warnings.catch_warnings():
            # Features need no gradients: that is as it should be.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for epoch in range(int(self.epochs)):
                if epoch == self.switch_epoch:
                    engine.switch(lr=self.switch_lr)
                for batch in _batches(engine, rows):
                    optimizer.zero_grad()
                    criterion(module(batch[0]), batch[1]).backward()
                    optimizer.step()
        self._report(engine, len(t))
        return self._plain(module, columns)

    def _keep(self, solution: nn.Module, middle: float, half: float) -> None:
        self.module_, self._label_map = solution, (middle, half)

    def _network(self, columns: Any) -> nn.Module:
        sizes = len(columns.public), len(columns.private)
        if self.model == "mlp":
            return MultilayerPerceptron(*sizes, hidden=tuple(self.hidden))
        return FactorizationMachine(*sizes, factors=int(self.factors))

    def _plain(self, module: nn.Module, columns: Any) -> nn.Module:
        """The trained network with conditioner and standardisation folded into its first layer."""
        network = self._network(columns).double()
        network.load_state_dict(plain_state_dict(module))
        first: Any = network.get_submodule("first.public")
        with torch.no_grad():
            first.weight.mul_(torch.from_numpy(self.conditioner_._inverse_scale()))
            first.bias.sub_(first.weight @ torch.from_numpy(self.conditioner_.mean_))
        return network.eval().requires_grad_(False)

    def _report(self, engine: CondPrivacyEngine, n: int) -> None:
        found = engine.privacy_report(float(self.delta))
        name = {"mlp": "a multilayer perceptron", "fm": "a factorisation machine"}[self.model]
        self.privacy_ = replace(
            found,
            mechanism=f"{found.mechanism}, of {name}, noise multiplier {found.sigma:.4g}",
            public=self._public(n),
            notes=self._notes(),
        )


def _batches(engine: CondPrivacyEngine, rows: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch by indexing, which a loader does one row at a time."""
    if engine.sampling == "full":
        yield rows
        return
    sampler: Any = engine.data_loader.batch_sampler
    for chosen in sampler:
        index = torch.tensor(chosen, dtype=torch.long)
        yield rows[0][index], rows[1][index]
