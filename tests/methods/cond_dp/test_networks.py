"""Private networks for scikit-learn, the choice of hyper-parameters that is counted, and model folders."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.base import clone

from assay.errors import InputError
from assay.methods.cond_dp import (
    CondDPNetworkRegressor,
    CondDPRegressor,
    DPSGDRegressor,
    LabelSSPRegressor,
    MultilayerPerceptron,
    PublicConditioner,
    fit_tuned,
    gaussian_mu,
    load_model,
    read_privacy,
    save_model,
)
from assay.methods.cond_dp.accounting import epsilon_of_mu
from assay.methods.cond_dp.models import FactorizationMachine
from assay.methods.cond_dp.tuning import candidates_of, noisy_errors


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) * [2, 1, 0.2] + [2013, 0, 5]
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, np.clip(5 + z[:, 0] * z[:, 1] + z[:, 2], 0, 10)


def network(**options):
    settings = {"y_range": (0, 10), "hidden": (8,), "factors": 4, "epochs": 3, "random_state": 0}
    return CondDPNetworkRegressor(**(settings | options))


@pytest.mark.parametrize("model", ["mlp", "fm"])
def test_networks_learn_what_a_line_cannot(data, model):
    X, y = data
    fitted = network(
        model=model, epsilon=math.inf, epochs=400, lr=0.03, clip=10.0, hidden=(16,), switch_epoch=200
    ).fit(X, y)
    line = CondDPRegressor(epsilon=math.inf, y_range=(0, 10), epochs=400, clip=10.0).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert line.score(X, y) < 0.7


@pytest.mark.parametrize("model", ["mlp", "fm"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"switch_epoch": 1, "switch_lr": 0.001},
        {"batch": 50},
        {"conditioner": PublicConditioner(power=0, standardize=True)},
        {"conditioner": PublicConditioner(standardize=True, scale="learned"), "optimizer": "sgd"},
        {"adjacency": "semi_sensitive", "private_columns": {1: (-3, 3)}},
    ],
)
def test_reports_and_repeatability(data, model, options):
    X, y = data
    fitted = network(model=model, **options).fit(X, y)
    again = clone(fitted).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), again.predict(X))
    report = fitted.privacy_
    assert 0.9 < report.epsilon[report.adjacency] <= 1
    assert report.steps == (24 if "batch" in options else 3)
    assert ("perceptron" if model == "mlp" else "factorisation machine") in report.statement
    assert "whoever knows it" in report.statement


def test_the_network_afterwards_is_an_ordinary_one(data):
    """Conditioner and standardisation are in its weights."""
    X, y = data
    fitted = network(switch_epoch=2).fit(X, y)
    plain = MultilayerPerceptron(3, hidden=(8,)).double()
    plain.load_state_dict(fitted.module_.state_dict())
    with torch.no_grad():
        np.testing.assert_allclose(plain(torch.from_numpy(X)).numpy() * 5 + 5, fitted.predict(X))


def test_a_factorisation_machine_has_all_products():
    machine = FactorizationMachine(2, 1, factors=2)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.zero_()
        # v_1 = x_0 + p, v_2 = x_0 - p: half the difference of the squares is 2 x_0 p.
        machine.first.public.weight[1:, 0] = 1.0
        machine.first.private.weight[1:, 0] = torch.tensor([1.0, -1.0])
        x = torch.tensor([[3.0, 9.0, 5.0], [1.0, 2.0, -1.0]])
        torch.testing.assert_close(machine(x), torch.tensor([30.0, -2.0]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "cnn"}, "model is 'cnn'"),
        ({"hidden": ()}, "hidden is"),
        ({"hidden": (0,)}, "hidden is"),
        ({"hidden": 8}, "hidden is 8"),
        ({"factors": 0}, "factors 0"),
        ({"switch_epoch": 9}, "pass 0 to epochs"),
        ({"switch_lr": -1}, "switch_lr is -1"),
    ],
)
def test_bad_parameters(data, options, words):
    with pytest.raises(InputError, match=words):
        network(**options).fit(*data)


# Choosing hyper-parameters.


def test_the_choice_is_counted(data):
    X, y = data
    estimator = CondDPRegressor(epsilon=1.0, y_range=(0, 10))
    fitted, tuning = fit_tuned(estimator, X, y, share=0.2)
    assert len(tuning.candidates) == len(tuning.scores) == 6
    # What is left for the last fit and what the choice had add up, as squares, to the budget.
    left = gaussian_mu(fitted.epsilon, 1e-6)
    assert left**2 == pytest.approx(0.8 * gaussian_mu(1.0, 1e-6) ** 2)
    assert fitted.privacy_.sigma == pytest.approx(2 * math.sqrt(64) / left)
    assert fitted.privacy_.epsilon == {"replace_label": 1.0}
    assert "used private data and is counted: it had 20% of the squared budget" in fitted.privacy_.statement
    assert "is not counted" not in fitted.privacy_.statement
    assert fitted.get_params()["lr"] == tuning.chosen["lr"]


def test_candidates_share_the_budget_of_the_choice(data, monkeypatch):
    X, y = data
    spent, seen = [], []
    original = CondDPRegressor.fit

    def fit(self, X, y):
        spent.append(gaussian_mu(self.epsilon, self.delta) ** 2)
        seen.append(len(X))
        return original(self, X, y)

    monkeypatch.setattr(CondDPRegressor, "fit", fit)
    fit_tuned(CondDPRegressor(epsilon=1.0, y_range=(0, 10)), X, y, share=0.3)
    total = gaussian_mu(1.0, 1e-6) ** 2
    assert sum(spent[:-1]) == pytest.approx(0.3 * total)
    assert spent[-1] == pytest.approx(0.7 * total)
    # Candidates do not see the rows that they are judged by.
    assert seen == [300] * 6 + [400]


def test_with_a_large_budget_the_better_candidate_wins(data):
    X, y = data
    options = candidates_of({"lr": (1e-6, 0.05)})
    for public in (True, False):
        estimator = CondDPRegressor(epsilon=500.0, y_range=(0, 10), clip=1.0)
        if not public:
            estimator.set_params(adjacency="semi_sensitive", private_columns={1: (-3, 3)})
        fitted, tuning = fit_tuned(estimator, X, y, share=0.2, candidates=options)
        assert tuning.chosen == {"lr": 0.05}
        assert fitted.score(X, y) > 0.2


def test_noisy_errors_are_errors_with_enough_noise():
    rng = np.random.default_rng(0)
    F, t = rng.uniform(-1, 1, size=(50, 3)), rng.uniform(-1, 1, size=50)
    exact = ((F - t[:, None]) ** 2).mean(axis=0)
    silent = noisy_errors(F, t, math.inf, rng, public=False)
    np.testing.assert_allclose(silent, exact)
    np.testing.assert_allclose(noisy_errors(F, t, math.inf, rng, public=True), exact - (t**2).mean())
    for public in (True, False):
        draws = np.array([noisy_errors(F, t, 0.5, rng, public=public) for _ in range(2000)])
        # The change when any one label is replaced, in units of the noise, must stay below mu.
        changes = []
        for i in range(50):
            sums = []
            for label in (-1.0, 1.0):
                other = t.copy()
                other[i] = label
                sums.append(noisy_errors(F, other, math.inf, rng, public=public))
            changes.append(np.linalg.norm(sums[0] - sums[1]))
        assert max(changes) / draws.std(axis=0).mean() <= 0.5 * 1.05


@pytest.mark.parametrize(
    ("options", "share", "candidates", "words"),
    [
        ({}, 0, None, "tuning budget is 0"),
        ({}, 1.0, None, "tuning budget is 1.0"),
        ({"batch": 10}, 0.2, None, "full batches"),
        ({"adjacency": "add_remove"}, 0.2, None, "full batches"),
        ({"epsilon": math.inf}, 0.2, None, "nothing to divide"),
        ({}, 0.2, [{"lr": 0.1}], "two candidates or more"),
    ],
)
def test_choices_that_cannot_be_counted(data, options, share, candidates, words):
    with pytest.raises(InputError, match=words):
        fit_tuned(CondDPRegressor(y_range=(0, 10), **options), *data, share=share, candidates=candidates)


# Folders.


@pytest.mark.parametrize(
    "estimator",
    [
        CondDPRegressor(y_range=(0, 10), random_state=0),
        DPSGDRegressor(y_range=(0, 10), epsilon=math.inf),
        LabelSSPRegressor(y_range=(0, 10)),
        network(),
        network(model="fm", adjacency="semi_sensitive", private_columns={"b": (-3, 3)}),
    ],
)
def test_models_come_back(data, tmp_path, estimator):
    X, y = data
    table = pd.DataFrame(X, columns=list("abc"))
    fitted = clone(estimator).fit(table, y)
    save_model(fitted, tmp_path / "model")
    loaded, encoding = load_model(tmp_path / "model")
    assert type(loaded) is type(fitted)
    assert encoding is None
    np.testing.assert_array_equal(loaded.predict(table), fitted.predict(table))
    assert loaded.privacy_ == fitted.privacy_ == read_privacy(tmp_path / "model")
    assert loaded.random_state is None
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == ["model.json", "privacy.json", "weights.safetensors"]
    text = "".join((tmp_path / "model" / name).read_text() for name in files[:2])
    assert "random_state" not in text
    assert "clipped_" not in text


def test_pytorch_alone_reads_the_weights(data, tmp_path):
    fitted = network().fit(*data)
    save_model(fitted, tmp_path / "model")
    plain = MultilayerPerceptron(3, hidden=(8,)).double()
    plain.load_state_dict(load_file(tmp_path / "model" / "weights.safetensors"))


def test_other_weights_are_not_covered_by_the_statement(data, tmp_path):
    X, y = data
    for name, seed in (("one", 0), ("two", 1)):
        save_model(CondDPRegressor(y_range=(0, 10), random_state=seed).fit(X, y), tmp_path / name)
    (tmp_path / "two" / "weights.safetensors").replace(tmp_path / "one" / "weights.safetensors")
    for read in (load_model, read_privacy):
        with pytest.raises(InputError, match="its guarantee does not hold"):
            read(tmp_path / "one")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "does not describe a private regressor"),
        ({"format_version": 9}, "format version 9"),
        ({"kind": "Evil"}, "unknown kind 'Evil'"),
        ({"n_features_in": 7}, "3 weights for 7 features"),
        ({"parameters": 3}, "damaged"),
        ({"parameters": {"epsilon": 1.0, "surprise": 1, "private_columns": []}}, "damaged"),
    ],
)
def test_damaged_models(data, tmp_path, changes, words):
    save_model(CondDPRegressor(y_range=(0, 10)).fit(*data), tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=words):
        load_model(tmp_path / "model")


def test_missing_files(data, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path / "nowhere")
    save_model(CondDPRegressor(y_range=(0, 10)).fit(*data), tmp_path / "model")
    (tmp_path / "model" / "weights.safetensors").unlink()
    with pytest.raises(InputError, match="does not exist"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "model.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_model(tmp_path / "model")


def test_epsilon_of_mu_is_the_inverse():
    assert epsilon_of_mu(gaussian_mu(0.7, 1e-6), 1e-6) == pytest.approx(0.7)
