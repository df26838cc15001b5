"""Audits find what mechanisms with a known privacy give away, and no more."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.frozen import FrozenEstimator

from assay.errors import InputError
from assay.methods.cond_dp.accounting import epsilon_spent, gaussian_mu
from assay.methods.cond_dp.audit import audit_label_privacy, canary_rows, regressor_mechanism
from assay.methods.cond_dp.baselines import LabelSSPRegressor
from assay.methods.cond_dp.conditioner import PublicConditioner
from assay.methods.cond_dp.regressors import CondDPRegressor, DPSGDRegressor


def gaussian_mechanism(mu):
    """The release of a label in {-1, 1} with mu-Gaussian differential privacy."""
    return lambda label, rng: label + 2 / mu * rng.standard_normal()


def test_a_gaussian_release_is_measured_from_below():
    for mu in (0.5, 1.5):
        found = audit_label_privacy(gaussian_mechanism(mu), (-1, 1), delta=1e-5, runs=4000, seed=1)
        assert 0.7 * mu < found.gaussian_mu_lower < mu
        assert found.true_positives == pytest.approx(stats.norm.cdf(mu / 2), abs=0.03)
        assert found.epsilon_lower < found.gaussian_epsilon_lower


def test_randomised_response_is_measured_from_below():
    epsilon = 2.0
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = audit_label_privacy(
        lambda label, rng: label if rng.random() < keep else -label, (-1, 1), delta=1e-6, runs=4000
    )
    assert 1.7 < found.epsilon_lower < epsilon


def test_an_oracle_of_nothing_gives_nothing():
    found = audit_label_privacy(lambda label, rng: rng.random(), (-1, 1), delta=1e-5, runs=300)
    assert found.epsilon_lower == 0
    assert found.gaussian_epsilon_lower == 0


def test_a_mechanism_without_noise_is_bounded_by_the_number_of_runs_only():
    found = audit_label_privacy(lambda label, rng: label, (-1, 1), delta=1e-5, runs=500)
    assert found.true_positives == 1
    assert found.false_positives == 0
    assert found.epsilon_lower > 4


def test_the_intervals_keep_to_their_confidence():
    """A bound that is too high happens less often than the confidence allows for."""
    mu, runs, beyond = 1.0, 60, 0
    for seed in range(120):
        found = audit_label_privacy(
            gaussian_mechanism(mu), (-1, 1), delta=1e-5, runs=runs, pilot_runs=20, confidence=0.8, seed=seed
        )
        beyond += found.gaussian_mu_lower > mu
    assert beyond / 120 <= 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "needs runs"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"delta": 0.0}, "delta is 0.0"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(InputError, match=message):
        audit_label_privacy(gaussian_mechanism(1.0), (-1, 1), **({"delta": 1e-5} | options))


def test_the_canary_is_alone_in_its_column():
    X, y = canary_rows(16, 3)
    assert X.shape == (16, 3)
    assert np.count_nonzero(X[:, 0]) == 1
    assert not X[0, 1:].any()
    assert not y.any()


def audited(model, seed=0, runs=1500):
    X, y = canary_rows(16, 3, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return audit_label_privacy(
            regressor_mechanism(model, X, y, 0), (-1.0, 1.0), delta=1e-6, runs=runs, seed=seed
        )


DESCENT = {"y_range": (-1.0, 1.0), "optimizer": "sgd", "epochs": 4, "lr": 0.01}


def add_or_remove(epsilon):
    """Noise as in the published code: calibrated for adding or removing a row."""
    X, _ = canary_rows(16, 3)
    public = PublicConditioner(standardize=True).fit(np.vstack([X, X]))
    return CondDPRegressor(epsilon, adjacency="add_remove", conditioner=FrozenEstimator(public), **DESCENT)


def test_a_short_audit_of_label_ssp_finds_less_than_it_reports():
    found = audited(LabelSSPRegressor(8.0, y_range=(-1.0, 1.0), ridge=0.01, row_quantile=1.0), runs=150)
    assert 0 < found.gaussian_epsilon_lower < 8.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("kind", [CondDPRegressor, DPSGDRegressor])
def test_a_label_is_protected_as_reported(kind, epsilon):
    found = audited(kind(epsilon, **DESCENT), runs=2500)
    assert found.gaussian_epsilon_lower <= epsilon
    assert found.epsilon_lower <= epsilon
    # The canary is a strong one: the bound is no empty promise.
    assert found.gaussian_epsilon_lower > 0.45 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CondDPRegressor, DPSGDRegressor])
def test_a_label_is_protected_as_reported_with_adam(kind):
    found = audited(kind(2.0, **(DESCENT | {"optimizer": "adam"})), runs=1000)
    assert found.gaussian_epsilon_lower <= 2.0


@pytest.mark.slow
def test_too_little_noise_is_noticed():
    """The published accounting promises 2; replacing a label costs more than twice that, and it shows."""
    model = add_or_remove(2.0)
    found = audited(model, runs=2500)
    assert found.gaussian_epsilon_lower > 2.0
    X, y = canary_rows(16, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        report = model.fit(X, y).privacy_
    assert report.epsilon["add_remove"] == pytest.approx(2.0, rel=1e-6)
    from assay.methods.cond_dp.accounting import NoisySteps

    truth = epsilon_spent([NoisySteps(report.sigma, 1.0, report.steps)], 1e-6, "replace_label")
    assert found.gaussian_epsilon_lower < truth
    assert 2 * gaussian_mu(2.0, 1e-6) == pytest.approx(gaussian_mu(truth, 1e-6), rel=1e-6)
