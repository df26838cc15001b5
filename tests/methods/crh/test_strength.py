"""Minimal strengths against closed forms, conformal coverage, the accelerated-failure-time model."""

import math

import numpy as np
import pytest
import torch

from assay.errors import InputError
from assay.methods.crh import (
    Strengths,
    conformal_interval,
    fit_accelerated,
    minimal_strength,
    recommend,
    sector_map,
    sweep_sectors,
)
from assay.methods.crh.cylinder import Cylinder
from assay.methods.crh.sectors import SectorMap


@pytest.fixture(scope="module")
def cylinder():
    """Axis e0, plane e1 and e2, unit mean difference, width 20."""
    eye = torch.eye(20, dtype=torch.float64)
    return Cylinder(eye[0], eye[0], eye[1:3], torch.tensor([2.0, 1.0]).double(), 2, 9, 1, 0.9)


def world(b=0.8, phase=0.7, tau=1.3):
    """Fires where z + b r cos(phi - phase) > tau."""

    def margin(i, vectors):
        helpful = math.cos(phase) * vectors[:, 1] + math.sin(phase) * vectors[:, 2]
        return (vectors[:, 0] + b * helpful - tau).float()

    return margin


def test_minimal_strength_in_a_synthetic_cylinder(cylinder):
    b, phase, tau, tilt = 0.8, 0.7, 1.3, math.radians(60)
    angles = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)[:-1]
    directions = cylinder.sector_directions(cylinder.frame(), tilt, angles)
    censored = 0
    for angle, direction in zip(angles, directions, strict=True):
        slope = math.cos(tilt) + b * math.sin(tilt) * math.cos(float(angle) - phase)
        found = minimal_strength(world(b, phase, tau), 0, direction, 40.0)
        if slope <= 0 or tau / slope > 40:
            assert found.censored
            assert found.value == 40.0
            censored += 1
        else:
            assert not found.censored
            assert found.value == pytest.approx(tau / slope, rel=0.01)
    assert 0 < censored < 8


def test_thresholds_at_once_never_and_between():
    direction = torch.zeros(20)
    direction[0] = 1
    assert minimal_strength(world(tau=-1), 0, direction, 5.0).value == 0
    never = minimal_strength(world(tau=9), 0, direction, 5.0)
    assert (never.value, never.censored) == (5.0, True)
    found = minimal_strength(world(tau=2.345), 0, direction, 5.0, steps=3)
    assert found.value == pytest.approx(2.345, rel=1e-6)
    assert list(found.strengths) == sorted(found.strengths)
    for wrong in ({"s_max": 0.0}, {"s_max": 1.0, "steps": 0}, {"s_max": 1.0, "tolerance": 0.0}):
        with pytest.raises(InputError, match="positive"):
            minimal_strength(world(), 0, direction, **wrong)
    with pytest.raises(InputError, match="NaN"):
        minimal_strength(lambda i, v: v[:, 0] * torch.nan, 0, direction, 1.0)


def test_a_sector_map_of_the_synthetic_cylinder(cylinder):
    found = sector_map(world(), cylinder, 0, n_phi=16, strengths=[1.0, 2.0, 4.0], n_controls=19)
    effects = found.effects()
    expected = 0.8 * math.sin(found.tilt) * found.strengths.mean()
    assert effects.amplitude == pytest.approx(expected, rel=1e-5)
    assert effects.phase == pytest.approx(0.7, abs=1e-5)
    assert abs(effects.best - 0.7) < math.pi / 8
    assert effects.p_value == pytest.approx(0.05)
    assert effects.relative_range > 3
    assert effects.facilitating + effects.suppressing == pytest.approx(1)
    assert effects.control_range < 0.8 * effects.range
    np.testing.assert_allclose(found.axis_only, 0.5 * found.strengths - 1.3, atol=1e-6)
    onset = found.onset()
    slope = math.cos(found.tilt) + 0.8 * math.sin(found.tilt) * np.cos(found.angles - 0.7)
    np.testing.assert_array_equal(np.isinf(onset), (slope <= 0) | (1.3 / slope > 4))
    np.testing.assert_allclose(
        onset[(onset > 1) & np.isfinite(onset)], (1.3 / slope)[(onset > 1) & np.isfinite(onset)], rtol=1e-5
    )


@pytest.mark.parametrize(
    "wrong",
    [{"n_phi": 2}, {"tilt_deg": 0.0}, {"tilt_deg": 90.0}, {"strengths": [2.0, 1.0]}, {"n_controls": -1}],
)
def test_bad_maps(cylinder, wrong):
    with pytest.raises(InputError):
        sector_map(world(), cylinder, 0, **wrong)


def test_an_interrupted_sweep_resumes(cylinder, tmp_path):
    asked = []

    def margin(i, vectors):
        asked.append(i)
        if i == 2 and asked.count(2) == 1:
            raise KeyboardInterrupt
        return world(tau=1.0 + i)(i, vectors)

    options = {"key": {"model": "m"}, "n_phi": 4}
    with pytest.raises(KeyboardInterrupt):
        sweep_sectors(margin, cylinder, [0, 1, 2, 3], tmp_path, **options)
    assert len(list(tmp_path.iterdir())) == 2
    done = []
    found = sweep_sectors(
        margin, cylinder, [0, 1, 2, 3], tmp_path, on_sample=lambda *a: done.append(a), **options
    )
    assert asked == [0, 1, 2, 2, 3]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for i in range(4):
        fresh = sector_map(world(tau=1.0 + i), cylinder, i, n_phi=4)
        np.testing.assert_array_equal(found[i].margins, fresh.margins)
    sweep_sectors(margin, cylinder, [0], tmp_path, **(options | {"n_phi": 5}))
    assert asked[-1] == 0
    (tmp_path / "torn.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match="no sector map"):
        SectorMap.load(tmp_path / "torn.npz")


@pytest.mark.parametrize(("n", "exact"), [(59, 0.9), (19, 0.9)])
def test_conformal_coverage(n, exact):
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        draws = generator.gamma(2.0, size=n + 1)
        low, high = conformal_interval(draws[:n], 0.9)
        hits += low <= draws[n] <= high
    assert hits / 2000 == pytest.approx(exact, abs=0.03)


def test_conformal_bounds_with_few_and_censored_samples():
    assert conformal_interval([1.0, 2.0, 3.0], 0.9) == (0.0, math.inf)
    assert conformal_interval(np.arange(1, 20.0), 0.9) == (1.0, 19.0)
    low, high = conformal_interval([*np.arange(1, 19.0), math.inf], 0.9)
    assert (low, high) == (1.0, math.inf)
    for wrong in (0.0, 1.0):
        with pytest.raises(InputError, match="coverage"):
            conformal_interval([1.0], wrong)
    with pytest.raises(InputError, match="no calibration"):
        conformal_interval([], 0.9)


def test_recommendations():
    values = np.arange(1, 21.0)
    never = values > 17
    found = recommend(Strengths(np.minimum(values, 17), never, 17.0))
    assert found.p_never == pytest.approx(0.15)
    assert found.p_never_interval[0] < 0.15 < found.p_never_interval[1]
    assert found.median == 9
    assert found.strength() == 9
    assert str(found) == "strength 9 [0, unbounded]; 15% of prompts never fire"
    assert "17 samples that fire cannot bound a 90% interval; 19 can" in found.advice
    assert str(recommend(Strengths(np.minimum(values, 17), never, 17.0), 0.8)) == (
        "strength 9 [1, 17]; 15% of prompts never fire"
    )
    nothing = recommend(Strengths(np.full(5, 3.0), np.ones(5, bool), 3.0))
    assert math.isinf(nothing.median)
    assert nothing.strength() == 3.0
    assert "raise s_max" in nothing.advice
    assert "more than 3" in str(nothing)
    assert "19 can" in recommend(Strengths(np.arange(1, 9.0), np.zeros(8, bool), 9.0)).advice
    assert "without steering" in recommend(Strengths(np.zeros(20), np.zeros(20, bool), 9.0)).advice
    best = Strengths(
        values, np.zeros(20, bool), 20.0, "generation", (5.0, 10.0, 20.0), (0.2, 0.8, 0.8), (0, 0, 0)
    )
    assert recommend(best).strength() == 10.0
    close = Strengths(values, np.zeros(20, bool), 20.0, "generation", (5.0, 10.0), (0.75, 0.8), (0, 0))
    assert recommend(close).strength() == 5.0
    failed = Strengths(values, np.zeros(20, bool), 20.0, "generation", (5.0, 10.0), (0.0, 0.0), (0, 1))
    assert recommend(failed).best is None
    with pytest.raises(InputError, match="marks"):
        Strengths(np.ones(2), np.ones(3, bool), 1.0)
    with pytest.raises(InputError, match="censored"):
        Strengths(np.array([np.inf]), np.ones(1, bool), 1.0)


def test_the_interval_covers_what_fires_however_many_never_do():
    generator = np.random.default_rng(3)
    covered = []
    for _ in range(2000):
        times = generator.gamma(2.0, size=31)
        never = generator.random(31) < 0.3
        found = recommend(Strengths(np.where(never, 50.0, times)[:30], never[:30], 50.0), 0.8)
        assert math.isfinite(found.high)
        if not never[30]:
            covered.append(found.low <= times[30] <= found.high)
    assert 0.78 < np.mean(covered) < 0.9


def simulate(n, generator, s_max=200.0):
    features = generator.normal(size=(n, 2))
    times = np.exp(1.0 + 0.7 * features[:, 0] + 0.3 * generator.normal(size=n))
    return features, Strengths(np.minimum(times, s_max), times > s_max, s_max)


def test_the_accelerated_model_recovers_its_law_under_censoring():
    features, strengths = simulate(2000, np.random.default_rng(1), s_max=4.0)
    assert 0.2 < strengths.censored.mean() < 0.5
    model = fit_accelerated(features, strengths, calibration_share=0.2)
    slopes = model.slopes / model.spread
    np.testing.assert_allclose(slopes, [0.7, 0.0], atol=0.05)
    assert model.scale == pytest.approx(0.3, abs=0.03)
    assert math.log(model.median(np.zeros((1, 2)))[0]) == pytest.approx(1.0, abs=0.05)


def test_the_accelerated_interval_covers():
    generator = np.random.default_rng(2)
    hits = total = 0
    for seed in range(30):
        features, strengths = simulate(80, generator)
        model = fit_accelerated(features, strengths, seed=seed)
        new, truth = simulate(40, generator)
        low, high = model.interval(new, 0.9)
        hits += ((low <= truth.values) & (truth.values <= high)).sum()
        total += 40
    assert hits / total == pytest.approx(0.9, abs=0.04)


def test_bad_features():
    strengths = Strengths(np.arange(1, 9.0), np.zeros(8, bool), 9.0)
    for wrong in (np.zeros((7, 2)), np.zeros(8), np.full((8, 1), np.nan)):
        with pytest.raises(InputError, match="features"):
            fit_accelerated(wrong, strengths)
    with pytest.raises(InputError, match="too few"):
        fit_accelerated(np.zeros((5, 1)), Strengths(np.ones(5), np.zeros(5, bool), 2.0))
