"""Ghost norms against per-sample gradients, and trajectories against Opacus with the same noise."""

from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from assay.methods.cond_dp.ghost_training import (
    Network,
    NetworkTraining,
    Switch,
    clipped_gradient,
    train_network,
)
from assay.methods.cond_dp.linear import DivergedError
from assay.methods.cond_dp.models import FactorizationMachine, MultilayerPerceptron

N, D = 40, 5
SIZES = {"mlp": [D, 6, 4, 1], "fm": [D, 1 + 4]}


def problem(kind, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype(dtype)
    t = np.tanh(X[:, 0] + X[:, 1] * X[:, 2]).astype(dtype)
    return Network.initialised(SIZES[kind], rng, dtype), X, t


def as_module(network, kind):
    """The same network as a module of PyTorch."""
    module = MultilayerPerceptron(D, hidden=(6, 4)) if kind == "mlp" else FactorizationMachine(D, factors=4)
    module = module.double()
    layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, network.weights, network.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return module


@pytest.mark.parametrize("kind", SIZES)
def test_predictions_are_those_of_the_modules(kind):
    network, X, _ = problem(kind)
    module = as_module(network, kind)
    with torch.no_grad():
        np.testing.assert_allclose(network.predict(X), module(torch.from_numpy(X)).numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
def test_the_clipped_sum_is_that_of_per_sample_gradients(kind, clip):
    network, X, t = problem(kind)
    module = as_module(network, kind)
    totals = [np.zeros(tuple(p.shape)) for p in module.parameters()]
    for x, label in zip(torch.from_numpy(X), torch.from_numpy(t), strict=True):
        loss = (module(x[None])[0] - label) ** 2
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        norm = float(torch.sqrt(sum((g**2).sum() for g in gradients)))
        assert norm > 0
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient.numpy() * min(1.0, clip / (norm + 1e-6))
    for total, ours in zip(totals, clipped_gradient(network, X, t, clip), strict=True):
        np.testing.assert_allclose(ours, total, atol=1e-10)


@pytest.mark.parametrize("kind", SIZES)
def test_the_trajectory_is_that_of_opacus_with_the_same_noise(kind):
    network, X, t = problem(kind)
    module = as_module(network, kind)
    generator = torch.Generator().manual_seed(3)
    sigma, clip, lr, steps = 2.0, 0.5, 0.02, 6
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(t)), batch_size=N)
    made: Any = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=lr),
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=clip,
        poisson_sampling=False,
        noise_generator=generator,
    )
    private, optimizer, loader = made
    for _ in range(steps):
        for inputs, labels in loader:
            optimizer.zero_grad()
            ((private(inputs) - labels) ** 2).mean().backward()
            optimizer.step()
    same = torch.Generator().manual_seed(3)

    def normals(shape):
        # Opacus scales noise as it draws it.
        return torch.normal(0.0, sigma * clip, shape, generator=same, dtype=torch.float64).numpy() / (
            sigma * clip
        )

    train_network(network, X, t, NetworkTraining(steps, lr, clip, sigma), normals)
    with torch.no_grad():
        theirs = module(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(network.predict(X), theirs, atol=1e-6)


def quiet(shape):
    return np.zeros(shape)


@pytest.mark.parametrize("kind", SIZES)
def test_the_network_takes_plain_features_after_training(kind):
    network, X, t = problem(kind)
    C = np.diag([0.5, 1.0, 2.0, 4.0, 8.0])
    conditioned = Network(list(network.weights), list(network.biases))
    train_network(conditioned, X @ C, t, NetworkTraining(10, 0.01, 1.0, 0.0), quiet)
    train_network(network, X, t, NetworkTraining(10, 0.01, 1.0, 0.0), quiet, conditioner=C)
    np.testing.assert_allclose(network.predict(X), conditioned.predict(X @ C), atol=1e-10)


def test_a_switch_changes_the_geometry_and_not_the_function():
    network, X, t = problem("mlp")
    C = np.diag([0.5, 1.0, 2.0, 4.0, 8.0])
    before = Network(list(network.weights), list(network.biases))
    # The step after the switch has a learning rate of zero: what is left is the fold.
    train_network(before, X, t, NetworkTraining(5, 0.01, 1.0, 0.0), quiet, conditioner=C)
    switched = Network(list(network.weights), list(network.biases))
    train_network(switched, X, t, NetworkTraining(8, 0.01, 1.0, 0.0, Switch(5, 0.0)), quiet, conditioner=C)
    np.testing.assert_allclose(switched.predict(X), before.predict(X), atol=1e-12)
    # With a rate it is plain descent from there, with fresh moments of the first layer.
    going_on = Network(list(network.weights), list(network.biases))
    train_network(going_on, X, t, NetworkTraining(6, 0.01, 1.0, 0.0, Switch(5, 0.01)), quiet, conditioner=C)
    moved = going_on.weights[0] - before.weights[0]
    gradient = clipped_gradient(before, X, t, 1.0)[0]
    # Adam's first step from fresh moments has the size of the learning rate everywhere.
    np.testing.assert_allclose(moved[gradient != 0], -0.01 * np.sign(gradient[gradient != 0]), atol=1e-5)


def test_a_switch_at_the_start_is_plain_descent_from_folded_weights():
    network, X, t = problem("mlp")
    C = np.diag([0.5, 1.0, 2.0, 4.0, 8.0])
    plain = Network([network.weights[0] @ C, *network.weights[1:]], list(network.biases))
    train_network(plain, X, t, NetworkTraining(4, 0.01, 1.0, 0.0), quiet)
    train_network(network, X, t, NetworkTraining(4, 0.5, 1.0, 0.0, Switch(0, 0.01)), quiet, conditioner=C)
    np.testing.assert_allclose(network.predict(X), plain.predict(X), atol=1e-12)


def test_an_overflow_is_an_error():
    network, X, t = problem("mlp", np.float32)
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match="lower lr"):
        train_network(network, X, t, NetworkTraining(20, 1e38, 1.0, 0.0), quiet)
