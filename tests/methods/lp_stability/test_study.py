"""The study measures what it says: exact truths against independent calculations, bounds against truths."""

import math
import subprocess
import sys
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from assay.errors import InputError
from assay.methods.lp_stability import exact_checks, experiments, populations, simulate
from assay.methods.lp_stability.analytic import constrained_ridge
from assay.methods.lp_stability.study import STUDY, run
from assay.study import FinishedTrial, Invariance, Trial, judge


def trial(arm, seed=0, **setting):
    return Trial(arm, setting, seed)


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.lp_stability.study import STUDY; list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_claim_has_trials_at_the_quick_scale():
    planned = list(STUDY.trials("quick", None))
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing > 0, claim.id
    assert len({t.id for t in planned}) == len(planned)


def test_a_trial_repeats_itself_whatever_ran_before():
    wanted = trial("hold-out", part="ridge", noise="pareto", m=60, strong_convexity=0.5, seed=1)
    first = run(wanted)
    run(trial("optimised", part="ridge", noise="pareto", m=60, strong_convexity=0.7))
    for cached in (experiments._ridge_draws, experiments._ridge_value, experiments._problem):
        cached.cache_clear()
    assert run(wanted) == first


# Means of Student variables.


@pytest.mark.parametrize("nu", [3.5, 10.0])
def test_the_inversion_gives_the_law_of_one_variable(nu):
    for z in (0.5, 3.0, 20.0):
        assert simulate.mean_tail(z, nu, 1) == pytest.approx(2 * stats.t.sf(z, nu), rel=1e-6, abs=1e-11)


def test_the_inversion_gives_the_law_of_a_mean_of_cauchy_variables():
    # The mean of n Cauchy variables is Cauchy.
    assert simulate.mean_tail(2.0, 1.0, 50) == pytest.approx(2 * stats.cauchy.sf(2.0), rel=1e-8)
    assert simulate.mean_quantile(0.01, 1.0, 50) == pytest.approx(stats.cauchy.isf(0.005), rel=1e-6)


def test_far_out_the_tail_is_never_noise():
    assert simulate.mean_tail(1e6, 5.0, 1000) <= 1e-10


def test_the_swap_envelope_of_student_variables():
    swap = simulate.StudentSwap(5.0)
    draws = swap.sample(400_000, np.random.default_rng(0))
    assert math.exp(swap.log_moments(2.0)) == pytest.approx(2 * 5 / 3)
    assert math.exp(swap.log_moments(1.4)) == pytest.approx(np.mean(draws**1.4), rel=0.01)
    # E (Z - Z')^4 = 2 E Z^4 + 6 (E Z^2)^2 = 2 * 25 + 6 * 25 / 9.
    assert math.exp(swap.log_moments(4.0)) == pytest.approx(50 + 150 / 9, rel=1e-3)
    assert swap.log_moments(5.0) == math.inf
    x = np.random.default_rng(1).standard_t(5, size=400_000)
    h = swap.conditional(x)
    assert math.exp(swap.log_conditional_moments(2.0)) == pytest.approx(np.mean(h**2), rel=0.02)
    exceedance, beyond = swap.tail(np.array([0.5, 2.0, 4.0]))
    assert exceedance[0] == 1.0
    for level, share, mean in zip((2.0, 4.0), exceedance[1:], beyond[1:], strict=True):
        assert share == pytest.approx(np.mean(h > level), rel=0.06)
        assert mean == pytest.approx(np.mean(h * (h > level)), rel=0.06)


def test_radii_are_those_of_the_specified_experiment():
    # nu = 5, n = 1000, delta = 0.001: the true quantile is 0.135, from 2 10^6 simulated means.
    found = {arm: run(trial(arm, part="mean", nu=5.0, n=1000, delta=1e-3)) for arm in ("optimised", "paper")}
    assert found["optimised"]["truth"] == pytest.approx(0.135, rel=0.02)
    assert found["optimised"]["radius"] < 0.3
    assert found["paper"]["radius"] > 10 * found["optimised"]["radius"]
    assert all(measured["excess"] == 0 for measured in found.values())


def test_a_radius_that_is_too_short_is_noticed(monkeypatch):
    monkeypatch.setattr(experiments, "_radius", lambda *a, **k: 0.9 * 1000 * 0.105)
    assert run(trial("optimised", part="mean", nu=5.0, n=1000, delta=0.01))["excess"] > 0.5


def test_the_one_jump_law_is_exact():
    measured = run(trial("chebyshev", part="jump", p=4.0, z=30.0))
    assert measured["truth"] == pytest.approx(10 * 60.0**-4, rel=1e-5)
    # V = 10 Var(unit), and the variance of a unit is 1 + b^(2 - p) up to smaller terms.
    assert measured["tail"] == pytest.approx(10 * (1 + 60.0**-2) / 30**2, rel=1e-3)


# Ridge in a ball.


@pytest.mark.parametrize("noise", ["t5", "pareto", "sign"])
def test_the_risk_is_exact(noise):
    problem = simulate.BallRidgeProblem(noise, 400_000, 1.0)
    X, y = problem.rows(1, np.random.default_rng(3))
    w = np.array([0.4, 0.3, 0.0, -0.2, 0.0])
    losses = np.abs(y[0] - X[0] @ w)
    error = losses.std() / math.sqrt(losses.size)
    assert problem.risk(w[None])[0] == pytest.approx(losses.mean(), abs=4 * error)


def test_the_label_law_is_that_of_the_labels():
    problem = simulate.BallRidgeProblem("pareto", 300_000, 1.0)
    _, y = problem.rows(1, np.random.default_rng(4))
    levels = np.array([-0.9, 0.0, 1.5])
    assert problem.label_law.sf(levels) == pytest.approx((y[0][:, None] > levels).mean(0), abs=4e-3)
    assert math.exp(problem.label_size.log_moments(1.0)) == pytest.approx(np.abs(y).mean(), rel=0.01)


def test_the_envelope_bounds_what_swaps_do():
    problem = simulate.BallRidgeProblem("t5", 40, 0.5)
    X, y = problem.rows(201, np.random.default_rng(5))

    def fit(rows, labels):
        grams, moments = rows.transpose(0, 2, 1) @ rows, np.einsum("bmd,bm->bd", rows, labels)
        return simulate.ball_coefficients(grams, moments, 0.5 * 40, 1.0)[0]

    swapped, labels = np.repeat(X[:1], 200, axis=0), np.repeat(y[:1], 200, axis=0)
    swapped[:, 0], labels[:, 0] = X[1:, 0], y[1:, 0]
    moved = np.linalg.norm(fit(swapped, labels) - fit(X[:1], y[:1]), axis=1)
    allowed = problem.stability(np.repeat(X[:1, 0], 200, axis=0), np.repeat(y[0, 0], 200), X[1:, 0], y[1:, 0])
    assert (moved <= allowed).all()


def test_batches_count_exceedances():
    measured = np.zeros(100)
    risk = np.linspace(0.01, 1.0, 100)
    summary = experiments._summary(measured, risk, {0.1: 0.9, 0.01: 2.0}, 0.3)
    assert summary["exceeded@0.1"] == 10
    assert (summary["covered@0.1"], summary["covered@0.01"]) == (0.0, 1.0)
    assert summary["beyond@0.1"] == pytest.approx(0.9 / 0.6 - 1)


def test_the_certificates_of_ridge_cover():
    for arm in ("optimised", "known-law", "paper-3.4", "hold-out"):
        found = run(trial(arm, part="ridge", noise="t5", m=200, strong_convexity=1.0, seed=2))
        assert found["exceeded@0.1"] == 0
        assert found["gap@0.01"] > found["gap@0.1"] > found["gap_q90"]


# Populations.


def test_moments_of_a_population_are_those_of_its_pairs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)) / 5
    y = rng.standard_t(3, size=40)
    people = populations.Population(X, y, "", 1.0)
    function = constrained_ridge(x_bound=1.0, weight_bound=1.0, strong_convexity=1.0, m=10)
    share = function.row_share(X, y)
    pairs = share[:, None] + share
    independent = people.envelope(function, "independent")
    assert math.exp(independent.log_moments(3.0)) == pytest.approx(np.mean(pairs**3))
    assert math.exp(independent.log_conditional_moments(4.0)) == pytest.approx(
        np.mean((share + share.mean()) ** 4)
    )
    distinct = pairs[~np.eye(40, dtype=bool)]
    bound = math.exp(people.envelope(function, "distinct").log_moments(3.0))
    assert np.mean(distinct**3) <= bound <= 1.1 * np.mean(distinct**3)
    assert independent.bound == pytest.approx(2 * share.max())


def test_samples_are_drawn_as_asked():
    people = populations.Population(np.ones((50, 1)), np.arange(50.0), "", 1.0)
    rng = np.random.default_rng(0)
    distinct = people.sample(20, 40, rng, "distinct")
    assert all(len(set(rows)) == 40 for rows in distinct.tolist())
    assert any(len(set(rows)) < 40 for rows in people.sample(20, 40, rng, "independent").tolist())


def test_an_unknown_population_is_named():
    with pytest.raises(InputError, match="no population 'wages': choose one of flight-delays, bikeshare"):
        populations.population("wages")


@pytest.mark.parametrize("pairs", ["independent", "distinct"])
def test_rentals_are_certified(pairs):
    people = populations.population("bikeshare")
    assert len(people.y) == 8645
    assert np.linalg.norm(people.X, axis=1).max() == pytest.approx(1.0)
    found = run(trial("optimised", part="real", data="bikeshare", m=300, strong_convexity=1.0, pairs=pairs))
    assert found["exceeded@0.1"] == 0
    assert found["gap@0.1"] > found["gap_q90"] > 0


# The counterexamples, from first principles.


def test_theorem_3_10_as_printed_fails_for_two_points():
    """N = 2, one point to train on, labels 0 and 1, the predictor is 0: the gap is +1 or -1, never 0."""
    losses = [Fraction(0), Fraction(1)]
    gaps = [losses[1 - i] - losses[i] for i in (0, 1)]
    assert [abs(gap) for gap in gaps] == [1, 1]
    assert sum(gaps) == 0
    beta_h, largest_loss_difference, m, u = 0, 1, 1, 1
    printed = 2 * beta_h + abs(Fraction(1, u) - Fraction(1, m)) * largest_loss_difference
    corrected = 2 * beta_h + (Fraction(1, u) + Fraction(1, m)) * largest_loss_difference
    swap = abs(gaps[0] - gaps[1])
    assert printed == 0 < swap
    assert corrected == swap == 2
    for arm, violation in (("printed", 1.0), ("corrected", 0.0)):
        measured = run(trial(arm, part="witness", theorem="3.10"))
        assert measured["exact"] == 1.0
        assert measured["violation"] == violation


def test_theorem_3_14_as_printed_fails_for_two_tasks():
    """Tasks are point masses at 0 and 1, one is seen, 1 - theta is predicted: the gap is -1/2, always."""
    for theta in (Fraction(0), Fraction(1)):
        training = abs((1 - theta) - theta)
        transfer = sum(abs((1 - theta) - task) for task in (Fraction(0), Fraction(1))) / 2
        assert training == 1
        assert transfer - training == Fraction(-1, 2)
        # The only other observation of the task equals the one that is there: nothing changes within a task.
        within = {abs((1 - theta) - z) for z in (theta,)}
        assert len(within) == 1
    for arm, violation in (("printed", 1.0), ("corrected", 0.0)):
        assert run(trial(arm, part="witness", theorem="3.14"))["violation"] == violation


def test_the_printed_envelope_is_beaten_on_random_problems_and_the_corrected_one_is_not():
    for seed in range(2):
        printed, corrected = (
            run(trial(arm, seed, part="enumeration", theorem="3.10")) for arm in ("printed", "corrected")
        )
        assert printed["beyond_envelope"] > 0
        assert corrected["beyond_envelope"] == 0
        assert corrected["violation"] == 0


def test_enumerated_swaps_by_hand():
    masks = np.zeros((3, 3), dtype=bool)
    masks[np.arange(3)[:, None], list(combinations(range(3), 2))] = True
    f = np.array([0.0, 3.0, 1.0])
    allowed = np.full((3, 3), 2.0)
    assert exact_checks._beyond(f, masks, allowed) == pytest.approx(0.5)
    assert exact_checks._beyond(f, masks, 1.5 * allowed) == 0.0


def test_a_bound_below_an_exact_tail_is_a_violation():
    sizes, law = np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2])
    assert exact_checks._largest_violation(sizes, law, lambda z: 0.25)["violation"] == pytest.approx(0.25)
    assert exact_checks._largest_violation(sizes, law, lambda z: 0.5)["violation"] == 0.0


def test_an_exact_claim_fails_on_one_violation():
    claim = next(claim for claim in STUDY.claims if claim.id == "C5-corrected")
    assert isinstance(claim, Invariance)
    planned = [trial("corrected", seed, part="enumeration", theorem="3.14") for seed in range(3)]
    finished = [FinishedTrial(each, "ok", {"violation": 0.01 * (each.seed == 2)}) for each in planned]
    assert judge([claim], planned, finished, "quick")[0].verdict == "fails"
    assert judge([claim], planned[:2], finished[:2], "quick")[0].verdict == "holds"


# Stability measured.


@pytest.mark.parametrize("learner", ["ridge", "ball-ridge", "kernel-ridge", "neighbours"])
def test_shortcuts_equal_refits(learner):
    assert exact_checks.shortcut_error(learner=learner, seed=7)["difference"] < 1e-9


def test_a_network_s_swaps_are_measured():
    setting = {"part": "network", "m": 20, "copies": 3, "epochs": 1}
    measured = run(Trial("sgd", setting, 0))
    assert 0 < measured["change"] < 1
    assert run(Trial("sgd", setting, 0)) == measured


def test_plug_ins_are_measured():
    measured = experiments.plug_in(data="bikeshare", learner="ridge", m=200, draws=2, seed=0)
    assert measured["covered"] == float(measured["below"] == 0)
    assert measured["risk"] < measured["plug_in"]


def test_an_unknown_part_is_an_error():
    with pytest.raises(ValueError, match="unknown part 'guess'"):
        run(trial("optimised", part="guess"))


# Figures.


def test_figures_leave_out_what_has_no_trials():
    assert STUDY.figures([]) == {}
    planned = [
        trial(arm, part="mean", nu=5.0, n=n, delta=delta)
        for arm in ("optimised", "paper")
        for n, delta in ((100, 0.01), (1000, 0.01), (1000, 0.1))
    ]
    planned += [trial("printed", part="witness", theorem="3.10")]
    drawn = STUDY.figures([FinishedTrial(each, "ok", run(each)) for each in planned])
    assert set(drawn) == {"radius-against-delta", "radius-against-n"}
    assert all(panel.caption for panel in drawn.values())
    close(drawn)


def test_every_figure_can_be_drawn():
    seen, planned = set(), []
    for each in STUDY.trials("quick", 1):
        # One trial of every kind is enough; the expensive ones are made smaller.
        setting = dict(each.setting)
        if setting["part"] in ("estimate", "real", "truth", "enumeration", "network"):
            continue
        key = (each.arm, setting["part"])
        if key not in seen:
            seen.add(key)
            planned.append(Trial(each.arm, setting | ({"m": 100} if "m" in setting else {}), 0))
    finished = [FinishedTrial(each, "ok", run(each)) for each in planned]
    finished += [
        FinishedTrial(trial("sgd", part="network", m=m), "ok", {"log_change": -math.log(m)})
        for m in (50, 100)
    ]
    finished += [
        FinishedTrial(
            trial("plug-in", part="estimate", learner="ridge"),
            "ok",
            {"risk": 0.5, "plug_in": 0.7, "constant": 1.0},
        )
    ]
    drawn = STUDY.figures(finished)
    assert {"tightness", "certificate-parts", "coverage", "bounded-losses"} <= set(drawn)
    assert {"one-large-jump", "network-stability", "plug-in-estimates"} <= set(drawn)
    close(drawn)


def close(drawn):
    import matplotlib.pyplot as plt

    for panel in drawn.values():
        plt.close(panel.figure)
