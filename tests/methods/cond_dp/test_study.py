"""The study measures what it says, and imports without heavy libraries."""

import json
import math
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from assay.methods.cond_dp import experiments, study_tuning
from assay.methods.cond_dp.study import FIRST_SEED, STUDY, run
from assay.study import FinishedTrial, Trial, judge


def trial(arm, seed=1, **setting):
    return Trial(arm, setting, seed)


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.cond_dp.study import STUDY; list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'sklearn', 'pandas', 'matplotlib', 'opacus'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_trials_are_different_and_never_on_the_tuning_seed(scale):
    planned = list(STUDY.trials(scale, 2))
    assert len({each.id for each in planned}) == len(planned)
    assert min(each.seed for each in planned) == FIRST_SEED > study_tuning.SEED


def test_every_claim_has_trials_at_the_quick_scale():
    planned = list(STUDY.trials("quick", None))
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing > 0, claim.id


def test_every_arm_that_needs_hyper_parameters_has_recorded_ones_of_its_grid():
    recorded = json.loads(files("assay.methods.cond_dp").joinpath("tuned.json").read_text())
    assert recorded["seed"] == study_tuning.SEED
    wanted = {experiments.cell(arm, **setting): arm for arm, setting in study_tuning.cells()}
    assert set(recorded["choices"]) == set(wanted)
    for name, arm in wanted.items():
        assert recorded["choices"][name] in study_tuning.grid(arm), name


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["cond", "dpsgd", "rr-on-bins"])
def test_tuning_again_gives_what_is_recorded(arm):
    setting = {"data": "bikeshare", "epsilon": 1.0}
    assert study_tuning.best(arm, setting) == experiments.tuned(arm, **setting)


def test_a_trial_repeats_itself_whatever_ran_before():
    wanted = trial("cond", data="diabetes", epsilon=1.0)
    first = run(wanted)
    run(trial("dpsgd", data="diabetes", epsilon=4.0))
    assert run(wanted) == first
    assert run(trial("cond", 2, data="diabetes", epsilon=1.0)) != first


def test_ridge_is_measured_on_held_out_rows():
    rows = experiments.split("diabetes", 3)
    model = RidgeCV(np.logspace(-3, 4, 15)).fit(rows.X, rows.y)
    expected = np.mean((model.predict(rows.X_test) - rows.y_test) ** 2) / rows.y_test.var()
    assert run(trial("ridge", 3, data="diabetes"))["error"] == pytest.approx(expected)


def test_conditioning_beats_standardising_where_features_are_correlated():
    """Acceptance: at epsilon 0.25 the error is less than half of standardised DP-SGD's, seed by seed."""
    for seed in (1, 2, 3):
        found = {
            arm: run(trial(arm, seed, data="rotated", epsilon=0.25))["error"] for arm in ("cond", "dpsgd")
        }
        assert found["cond"] < 0.5 * found["dpsgd"]


def test_conditioning_costs_where_the_label_follows_the_largest_direction():
    """The bound predicts a gain of 1; noise in directions without any signal makes it a loss of about 30%."""
    ratios = []
    for seed in (1, 2, 3):
        found = {
            arm: run(trial(arm, seed, data="aligned", epsilon=0.25))["error"]
            for arm in ("cond-raw", "dpsgd-raw")
        }
        ratios.append(found["cond-raw"] / found["dpsgd-raw"])
    assert 1.0 < np.mean(ratios) < 1.5


def test_the_predicted_gain_allows_for_longer_rows():
    found = run(trial("prediction", check="prediction", data="bikeshare"))
    assert found["predicted"] > 1.5
    # Rare indicators become long rows, and the gain is gone.
    assert found["with_lengths"] < 1.1


def test_a_gain_is_the_ratio_of_two_fits():
    setting = {"data": "rotated", "epsilon": 1.0}
    measured = run(trial("gain", **setting))
    errors = {arm: run(trial(arm, **setting))["error"] for arm in ("cond", "dpsgd", "dpsgd-raw")}
    assert measured["log_error_ratio_standardised"] == pytest.approx(
        math.log(errors["dpsgd"] / errors["cond"])
    )
    excess = (errors["dpsgd-raw"] - 0.2) / (errors["cond"] - 0.2)
    assert measured["log_excess_ratio_raw"] == pytest.approx(math.log(excess))


def test_the_identity_changes_nothing():
    measured = run(trial("identity", check="identity"))
    assert measured == {"largest_difference": 0.0, "sigma_difference": 0.0}


def test_an_audit_is_compared_with_the_reported_epsilon(monkeypatch):
    measured = run(trial("audit", check="audit", runs=30))
    assert measured["beyond_reported"] == 0
    monkeypatch.setattr(experiments, "AUDITED_EPSILON", 200.0)
    found = run(trial("audit", check="audit", runs=60))
    assert found["epsilon_lower"] > 2


@pytest.mark.parametrize("arm", ["mlp-dpsgd", "mlp-cond", "mlp-switch", "fm-cond"])
def test_networks_are_trained_and_measured(arm, monkeypatch):
    monkeypatch.setattr(experiments, "NETWORK_STEPS", 16)
    choice = {"lr": 0.01, "clip": 1.0, "switch_at": 0.5, "lr_after": 0.003}
    measured = experiments.network_error(
        arm, choice, data="bikeshare", model=arm.split("-")[0], epsilon=50.0, seed=1
    )
    assert 0.1 < measured < 2


def test_every_arm_of_the_quick_scale_is_known():
    rows = experiments.split("diabetes", 1)
    for each in STUDY.trials("quick", 1):
        if "check" in each.setting or "model" in each.setting or each.arm == "gain":
            continue
        choice = experiments.tuned(each.arm, **each.setting)
        experiments.estimator(each.arm, rows, float(each.setting.get("epsilon", 1.0)), 1, choice)
    with pytest.raises(ValueError, match="unknown arm 'guess'"):
        experiments.estimator("guess", rows, 1.0, 1, {})


def test_a_spectrum_needs_its_gain():
    with pytest.raises(ValueError, match="predicted_gain"):
        experiments.split("spectrum", 1)


def test_exact_claims_fail_on_one_violation():
    claim = next(claim for claim in STUDY.claims if claim.id == "C3-published")
    planned = [trial("audit-as-published", seed, check="audit", runs=500) for seed in range(1, 4)]
    finished = [FinishedTrial(each, "ok", {"beyond_reported": 0.5 * (each.seed == 2)}) for each in planned]
    assert judge([claim], planned, finished, "quick")[0].verdict == "fails"


def test_figures_leave_out_what_has_no_trials():
    assert STUDY.figures([]) == {}


def test_every_figure_can_be_drawn():
    from matplotlib import pyplot

    planned = [
        each for each in STUDY.trials("quick", 2) if each.setting.get("data") not in ("words", "flights")
    ]
    rng = np.random.default_rng(0)
    names = ("error", "log_excess_ratio_raw", "log_excess_ratio_standardised")
    finished = [FinishedTrial(each, "ok", {name: float(rng.random()) for name in names}) for each in planned]
    drawn = STUDY.figures(finished)
    assert set(drawn) == {"error-against-epsilon", "spectra", "predicted-gain", "networks", "variants"}
    for panel in drawn.values():
        assert panel.caption
        pyplot.close(panel.figure)
