"""The law of captured energy, tests of sectors with planted and with no structure, and the verdict."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from assay.errors import InputError
from assay.methods.crh import (
    ConceptMargin,
    extract_differences,
    fit_cylinder,
    plane_test,
    predict_sectors,
    predictability,
    sector_test,
)
from assay.methods.crh.circular import mean_angle, rayleigh_p, resultant_length
from assay.methods.crh.plane import captured_energy
from assay.methods.crh.sector_prediction import SectorData, merge
from assay.methods.crh.verdict import sector_data, sensitivity


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def test_random_directions_follow_the_beta_law():
    generator = torch.Generator().manual_seed(0)
    normals = unit(torch.randn(2000, 575, generator=generator, dtype=torch.float64))
    basis = torch.linalg.qr(torch.randn(575, 7, generator=generator, dtype=torch.float64))[0].T
    captured = captured_energy(normals, basis)
    assert captured.mean() == pytest.approx(7 / 575, abs=0.0005)
    assert stats.kstest(captured, stats.beta(3.5, 284).cdf).pvalue > 0.01
    # The vectors live in R^575, orthogonal to an axis of R^576.
    padded = torch.nn.functional.pad(normals, (1, 0))[:40]
    found = plane_test(padded, torch.nn.functional.pad(basis, (1, 0)), 7)
    assert found.chance == 7 / 575
    assert found.p_value > 0.01
    assert stats.kstest(found.p_values, "uniform").pvalue > 0.01


def test_a_planted_plane_is_found_and_another_concepts_is_not():
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(200, 8, generator=generator, dtype=torch.float64))[0].T
    inside = torch.randn(16, 4, generator=generator, dtype=torch.float64) @ basis[:4]
    noise = torch.randn(16, 200, generator=generator, dtype=torch.float64) * 0.2
    normals = unit(inside + noise)
    own = plane_test(normals, basis[:4], 4, {"other": basis[4:]})
    assert own.p_value < 0.001
    assert own.ratio > 2
    assert own.specificity_p < 0.001
    assert own.others["other"] < 2 * own.chance
    other = plane_test(normals, basis[4:], 4)
    assert other.p_value > 0.01
    assert np.isnan(other.specificity_p)
    with pytest.raises(InputError, match="rank 9"):
        plane_test(normals, basis, 9)


def phases(generator, n, groups=1, noise=None, centre=0.7):
    angles = (
        generator.uniform(-np.pi, np.pi, n) if noise is None else centre + noise * generator.normal(size=n)
    )
    rows = generator.normal(size=(n, 30))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return SectorData(angles, rows, rows[:, :4], tuple(i % groups for i in range(n)))


def test_random_phases_are_not_predictable_and_rayleigh_is_uniform():
    generator = np.random.default_rng(0)
    covered, rayleigh = 0, []
    for seed in range(60):
        found = sector_test(phases(generator, 24, 4), phases(generator, 32, 4), n_perm=19, seed=seed)
        covered += all(s.interval[0] <= 0 <= s.interval[1] for s in found.scores.values())
        rayleigh.append(found.rayleigh_p)
    assert covered / 60 > 0.88
    assert stats.kstest(rayleigh, "uniform").pvalue > 0.01


def test_a_planted_common_phase_is_found():
    generator = np.random.default_rng(1)
    found = sector_test(
        phases(generator, 24, 4, np.radians(30)), phases(generator, 32, 4, np.radians(30)), n_perm=99
    )
    assert found.predictable
    assert found.scores["constant"].score == pytest.approx(np.exp(-(np.radians(30) ** 2) / 2), abs=0.08)
    assert found.scores["constant"].p_value == 0.01
    assert found.rayleigh_p < 1e-6
    assert (found.n, found.clusters) == (32, 4)


def test_ridge_and_nearest_find_what_the_features_hold():
    generator = np.random.default_rng(2)

    def world(n):
        rows = generator.normal(size=(n, 2))
        angles = np.arctan2(rows[:, 1], rows[:, 0]) + 0.2 * generator.normal(size=n)
        directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return SectorData(angles, directions, rows, ("c",) * n)

    found = sector_test(world(80), world(40), n_perm=99)
    for name in ("nearest", "ridge"):
        assert found.scores[name].score > 0.85
        assert found.scores[name].p_value == 0.01
    assert found.scores["constant"].interval[0] < 0.3
    assert found.clusters == 40


def test_predictions_are_made_within_a_concept():
    angles = np.array([0.1, 0.3, 2.0, 2.2])
    rows = np.eye(4)
    train = SectorData(angles, rows, rows, ("a", "a", "b", "b"))
    test = SectorData(np.zeros(3), rows[[3, 1, 2]], rows[[3, 1, 2]], ("b", "a", "b"))
    found = predict_sectors(train, test)
    np.testing.assert_allclose(found["constant"], [2.1, 0.2, 2.1])
    np.testing.assert_allclose(found["nearest"], [2.2, 0.3, 2.0])
    assert found["ridge"][1] == pytest.approx(0.2, abs=0.11)
    with pytest.raises(InputError, match="no training phases for b"):
        predict_sectors(train.subset([0, 1]), test)
    narrow = SectorData(test.phases, test.differences, rows[:3, :2], test.groups)
    with pytest.raises(InputError, match="features have 4 columns, held-out ones 2"):
        predict_sectors(train, narrow)


def test_power_is_what_the_sample_allows():
    generator = np.random.default_rng(3)
    found = sector_test(phases(generator, 20), phases(generator, 64), n_perm=19)
    assert found.detectable == pytest.approx(0.2476, abs=0.001)
    assert found.resultant_chance == pytest.approx(np.sqrt(np.pi / 256))


def test_circular_statistics():
    angles = np.array([np.pi - 0.1, -np.pi + 0.1])
    assert abs(mean_angle(angles)) == pytest.approx(np.pi)
    assert resultant_length(angles) == pytest.approx(np.cos(0.1))
    assert rayleigh_p(np.zeros(20)) < 1e-8
    even = np.arange(8) * np.pi / 4
    assert rayleigh_p(even) == pytest.approx(1)


def test_bad_sectors():
    generator = np.random.default_rng(4)
    with pytest.raises(InputError, match="too few"):
        sector_test(phases(generator, 9), phases(generator, 1))
    with pytest.raises(InputError, match="no training phases for 1"):
        sector_test(phases(generator, 9), phases(generator, 8, 2))
    both = merge([phases(generator, 3), phases(generator, 4)])
    assert len(both) == 7


def test_the_verdict_on_a_model(model, tokenizer, pairs, tmp_path):
    differences = extract_differences(model, tokenizer, pairs, [1])
    rows, train, test = differences.differences(1), list(range(7)), list(range(7, 12))
    cylinder = fit_cylinder(differences.subset(train))
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    seen = []
    report = predictability(
        cylinder, margin, rows, train, test, n_perm=39, others={"same": cylinder.basis},
        on_sample=lambda *a: seen.append(a),
    )  # fmt: skip
    assert seen[-1] == (12, 12)
    assert [t.k for t in report.planes] == [2, 4]
    assert report.kind in ("cylinder", "both", "sector only", "neither")
    assert report.planes[0].others["same"] == pytest.approx(report.planes[0].mean)
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["kind"] == report.kind
    assert 0 <= report.own_normal <= 1
    gradients = sensitivity(margin, cylinder, test)
    assert float((gradients.normal @ cylinder.axis).abs().max()) < 1e-10
    own = sector_data(cylinder, rows[test], gradients.normal, ["c"] * 5)
    expected = cylinder.geometry(rows[test]).normal[0] @ gradients.normal[0]
    assert np.sign(np.cos(own.phases[0])) == np.sign(float(expected))
    shared = sector_data(cylinder, rows[test], gradients.normal, ["c"] * 5, shared=True)
    assert not np.allclose(shared.phases, own.phases)
    with pytest.raises(InputError, match="both training"):
        predictability(cylinder, margin, rows, train, [6, 7])
    with pytest.raises(InputError, match="too few"):
        predictability(cylinder, margin, rows, train, [9])


def test_without_residuals_the_verdict_is_undefined(model, tokenizer, pairs):
    differences = extract_differences(model, tokenizer, pairs, [1])
    same = differences.subset([0] * 5)
    cylinder = fit_cylinder(same)
    margin = ConceptMargin(model, tokenizer, pairs, 1)
    report = predictability(cylinder, margin, differences.differences(1), [0, 1], [2, 3])
    assert report.kind == "undefined"
    assert report.plane_predictable is None
    assert report.sector_predictable is None
    assert json.dumps(report.as_dict(), allow_nan=False)
