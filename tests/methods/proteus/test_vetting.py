"""Scores against brute force and Monte Carlo; the search; and the committed pool."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict
from importlib import resources

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assay.errors import InputError
from assay.methods.proteus import vetting
from assay.methods.proteus.code_scores import (
    branch_coverage,
    independent_coverage,
    overlap_correlation,
    pair_coverage,
    score,
    wasserstein_to_normal,
)
from assay.methods.proteus.codes import CODES, mulbal, one_mad
from assay.methods.proteus.generators import Generator
from assay.methods.proteus.pool import POOL_V1, pool
from assay.methods.proteus.vetting import (
    Thresholds,
    estimate,
    gaussian_tiles,
    search,
    squared_errors,
    vet_generator,
)

FEW = settings(derandomize=True, deadline=None, max_examples=30)
REPORTS = json.loads(
    resources.files("assay.methods.proteus").joinpath("pool_v1.json").read_text(encoding="utf-8")
)["reports"]
NAMES = [f"{report['window']}-{report['bits']}" for report in REPORTS]


# ------------------------------------------------------------------------------------------------------
# scores


@pytest.mark.parametrize(("window", "bits", "lag"), [(6, 2, 1), (6, 2, 2), (7, 2, 3), (8, 3, 1), (7, 3, 2)])
def test_overlap_correlation_is_the_one_over_all_windows(window, bits, lag):
    values = np.random.default_rng(window).standard_normal(1 << window)
    stream = np.arange(1 << (window + lag * bits))
    earlier = values[stream >> (lag * bits)]
    later = values[stream % (1 << window)]
    assert overlap_correlation(values, bits, lag) == pytest.approx(
        np.corrcoef(earlier, later)[0, 1], abs=1e-12
    )


def test_states_that_share_no_bits_are_uncorrelated():
    values = np.random.default_rng(0).standard_normal(64)
    assert overlap_correlation(values, 2, 3) == pytest.approx(0.0, abs=1e-12)
    assert overlap_correlation(values, 2, 4) == 0.0


@FEW
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=9))
def test_branch_coverage_is_the_integral(values):
    grid = np.linspace(-9, 9, 36_001)
    nearest = np.square(grid[:, None] - np.array(values)).min(axis=1)
    expected = np.trapezoid(nearest * stats.norm.pdf(grid), grid)
    assert branch_coverage(np.array([values]))[0] == pytest.approx(expected, abs=1e-6)


def test_branch_coverage_by_monte_carlo():
    branches = np.random.default_rng(1).standard_normal((5, 4))
    x = np.random.default_rng(2).standard_normal(400_000)
    for row, coverage in zip(branches, branch_coverage(branches), strict=True):
        distances = np.square(x[:, None] - row).min(axis=1)
        assert abs(distances.mean() - coverage) < 5 * distances.std() / math.sqrt(len(x))


def test_branch_coverage_has_known_ends():
    levels = np.array([[-1.5104176, -0.4527800, 0.4527800, 1.5104176]])
    assert branch_coverage(levels)[0] == pytest.approx(0.11748, abs=1e-5)
    # One value v: E (x - v)^2 = 1 + v^2, however often it is repeated.
    assert branch_coverage(np.full((1, 4), 0.7))[0] == pytest.approx(1.49, abs=1e-12)


@pytest.mark.parametrize(("branches", "expected"), [(1, 2.0), (4, 0.387), (8, 0.162)])
def test_coverage_of_independent_values(branches, expected):
    sample = branch_coverage(np.random.default_rng(7).standard_normal((40_000, branches)))
    assert independent_coverage(branches) == pytest.approx(expected, abs=1e-3)
    assert abs(sample.mean() - independent_coverage(branches)) < 5 * sample.std() / math.sqrt(len(sample))


@pytest.mark.parametrize("size", [4, 64])
def test_wasserstein_is_the_area_between_distribution_functions(size):
    values = np.random.default_rng(size).standard_normal(size) * 1.2 + 0.1
    grid = np.linspace(-12, 12, 400_001)
    empirical = np.searchsorted(np.sort(values), grid, side="right") / size
    area = np.trapezoid(np.abs(empirical - stats.norm.cdf(grid)), grid)
    assert wasserstein_to_normal(values) == pytest.approx(area, abs=1e-4)


def test_spreads_by_hand():
    # State s is followed by the branch s mod 4 and belongs to the branch s >> 2.
    code = np.random.default_rng(4).standard_normal(16)
    code = (code - code.mean()) / code.std()
    successors = [code[4 * prefix : 4 * prefix + 4] for prefix in range(4)]
    predecessors = [code[prefix::4] for prefix in range(4)]
    scores = score(torch.from_numpy(code), 2)
    assert scores.branch_spread == pytest.approx(np.mean([row.var(ddof=1) for row in successors]))
    assert scores.merge_spread == pytest.approx(np.mean([row.var(ddof=1) for row in predecessors]))
    assert scores.overlap_correlation == pytest.approx(abs(overlap_correlation(code, 2, 1)))
    assert scores.overlap_correlation_squares == pytest.approx(abs(overlap_correlation(code**2, 2, 1)))


def test_moments_of_a_code():
    values = one_mad(10).values
    scores = score(values, 2)
    assert scores.skewness == pytest.approx(stats.skew(values.numpy().astype(float)), abs=1e-6)
    assert scores.excess_kurtosis == pytest.approx(stats.kurtosis(values.numpy().astype(float)), abs=1e-6)


def test_pair_coverage_is_the_chi_square_test_of_the_table_of_pairs():
    values = np.random.default_rng(8).standard_normal(1 << 10)
    edges = np.quantile(values, np.arange(1, 16) / 16)
    table = np.zeros((16, 16))
    for state, symbol in itertools.product(range(1 << 10), range(4)):
        successor = (state << 2) % (1 << 10) | symbol
        table[
            np.searchsorted(edges, values[state], "right"), np.searchsorted(edges, values[successor], "right")
        ] += 1
    test = stats.chi2_contingency(table, correction=False)
    assert pair_coverage(values, 2) == pytest.approx(test.statistic / test.dof)


def test_pair_coverage_does_not_grow_with_the_window():
    """The same imperfect law of pairs at two sizes: the counts differ, the score hardly."""
    small = pair_coverage(np.repeat(np.random.default_rng(1).standard_normal(1 << 9), 8), 2)
    assert small > 2.0
    for window in (14, 16):
        independent = np.random.default_rng(window).standard_normal(1 << window)
        assert pair_coverage(independent, 2) == pytest.approx(1.0, abs=0.3)


def test_a_counting_code_is_the_worst():
    """Multiplier 1: successors have almost the same value."""
    scores = vet_generator(Generator(1, 0, 0, (1, 1, 1, 1)), 12, 2)
    assert scores.branch_spread < 0.01
    assert scores.branch_coverage > 1.5
    assert set(Thresholds.at(12, 2).failed(scores)) >= {
        "branch_spread",
        "branch_coverage",
        "overlap_correlation",
    }


@pytest.mark.parametrize("window", [8, 12, 16])
def test_scores_of_known_codes(window):
    """Successors of 1MAD are closer to each other than independent values; those of mul1 avoid each other."""
    spread = {name: score(CODES[name](window).values, 2) for name in ("1mad", "mul1", "gaussian")}
    assert 0.67 < spread["1mad"].branch_spread < 0.72
    assert 0.45 < spread["1mad"].branch_coverage < 0.48
    assert 1.07 < spread["mul1"].branch_spread < 1.10
    assert 0.29 < spread["mul1"].branch_coverage < 0.315
    assert spread["gaussian"].branch_spread == pytest.approx(1.0, abs=0.05)
    assert spread["gaussian"].branch_coverage == pytest.approx(independent_coverage(4), abs=0.01)


def test_thresholds_name_what_fails():
    thresholds = Thresholds.at(12, 2)
    assert thresholds.failed(vet_generator(pool(12, 2)[0], 12, 2)) == []
    assert "branch_spread" in thresholds.failed(score(one_mad(12).values, 2))
    assert (
        Thresholds.at(8, 2).wasserstein > Thresholds.at(12, 2).wasserstein == Thresholds.at(16, 2).wasserstein
    )


# ------------------------------------------------------------------------------------------------------
# search


@pytest.fixture
def small_search(monkeypatch):
    monkeypatch.setattr(vetting, "selection_tiles", lambda trellis: 8)


def test_search_gives_a_report_that_json_holds(small_search):
    stages = []
    report = search(8, 2, candidates=60, seed=3, on_progress=lambda *step: stages.append(step))
    assert json.loads(json.dumps(report, allow_nan=False)) == json.loads(json.dumps(report))
    assert ("scores", 60, 60) in stages
    assert {stage for stage, _, _ in stages} == {"scores", "shortlist", "finalists", "fresh data"}
    for stage, done, total in stages:
        assert 1 <= done <= total, stage
    errors = [member["selection_error"]["mean"] for member in report["pool"]]
    assert errors == sorted(errors)
    assert len(report["pool"]) == 8
    assert report["accepted"] <= 60 - max(report["rejected"].values())
    assert len({member["generator"]["multiplier"] for member in report["pool"]}) == 8
    difference = report["peers"]["1mad"]["pool_minus_peer"]["mean"]
    assert difference == pytest.approx(
        report["pool_error"]["mean"] - report["peers"]["1mad"]["error"]["mean"]
    )


def test_search_repeats_for_its_seed_and_any_number_of_threads(small_search):
    report = search(8, 3, candidates=40, seed=1, threads=1)
    assert report == search(8, 3, candidates=40, seed=1, threads=3)
    assert report["pool"] != search(8, 3, candidates=40, seed=2)["pool"]


def test_search_refuses_what_it_cannot_do(small_search, monkeypatch):
    with pytest.raises(InputError, match="0 candidates"):
        search(8, 2, candidates=0)
    with pytest.raises(InputError, match="window 20"):
        search(20, 2)
    monkeypatch.setattr(Thresholds, "failed", lambda self, scores: ["branch_spread"])
    with pytest.raises(InputError, match="none of 5 candidates passed"):
        search(8, 2, candidates=5)


def test_draws_repeat_and_mix_on_request():
    plain = list(vetting.draw(200, 5, mixing=False))
    assert plain == list(vetting.draw(200, 5, mixing=False))
    assert {generator.shift for generator in plain} == {0}
    mixed = list(vetting.draw(200, 5, mixing=True))
    assert 60 < sum(generator.shift > 0 for generator in mixed) < 140
    assert len({generator.signs for generator in mixed}) == 8


def test_estimates():
    result = estimate(torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64))
    assert result.mean == 3.0
    assert result.standard_error == pytest.approx(stats.sem([1, 2, 3, 6]))


# -------------------------------------------------------------------------------------------------- the pool


def generator_of(member: dict) -> Generator:
    parameters = member["generator"]
    return Generator(**(parameters | {"signs": tuple(parameters["signs"])}))


def test_the_pool_is_the_one_of_the_reports():
    reported = {
        (report["window"], report["bits"]): tuple(generator_of(member) for member in report["pool"])
        for report in REPORTS
    }
    assert reported == POOL_V1
    for generators in POOL_V1.values():
        assert len({generator.multiplier for generator in generators}) == 8


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_members_pass_the_thresholds_with_the_scores_of_the_report(report):
    window, bits = report["window"], report["bits"]
    thresholds = Thresholds.at(window, bits)
    assert report["thresholds"] == json.loads(json.dumps(asdict(thresholds)))
    for member in report["pool"]:
        scores = vet_generator(generator_of(member), window, bits)
        assert thresholds.failed(scores) == []
        assert asdict(scores) == pytest.approx(member["scores"], rel=1e-6, abs=1e-9)


def check_errors(report: dict, members: int, seed: int, tiles: int) -> None:
    """The reported errors on data that the report has not seen."""
    window, bits = report["window"], report["bits"]
    x = gaussian_tiles(tiles, seed)
    for member in report["pool"][:members]:
        error = estimate(squared_errors(mulbal(generator_of(member), window), bits, x))
        noise = math.hypot(error.standard_error, member["error"]["standard_error"])
        assert abs(error.mean - member["error"]["mean"]) < 5 * noise


@pytest.mark.parametrize("report", [entry for entry in REPORTS if entry["window"] < 14])
def test_errors_of_the_report_hold_on_other_data(report):
    check_errors(report, members=3, seed=31337, tiles=128)


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_errors_of_all_members_hold_on_other_data(report):
    check_errors(report, members=8, seed=4242, tiles=64 if report["window"] > 12 else 512)


@pytest.mark.parametrize("window", [8, 10])
def test_the_pool_is_better_than_computed_codes_in_small_windows(window):
    x = gaussian_tiles(512, seed=2024)
    ours = torch.stack([squared_errors(mulbal(member, window), 2, x) for member in pool(window, 2)]).mean(
        dim=0
    )
    for name in ("1mad", "3inst"):
        difference = estimate(ours - squared_errors(CODES[name](window), 2, x))
        assert difference.mean < -5 * difference.standard_error, name


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("window", range(4, 17))
def test_every_trellis_has_a_pool(window, bits):
    assert len(pool(window, bits)) == 8


def test_the_nearest_pool():
    assert pool(9, 2) == POOL_V1[10, 2]
    assert pool(4, 2) == POOL_V1[8, 2]
    with pytest.raises(InputError, match="window 18"):
        pool(18, 2)
    with pytest.raises(InputError, match="5 bits"):
        pool(12, 5)
