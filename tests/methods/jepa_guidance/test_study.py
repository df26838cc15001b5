"""The study measures what it says: shared models, paths, matched points, exact gradients, figures."""

import math
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.methods.jepa_guidance import experiments, study_material
from assay.methods.jepa_guidance.experiments import exact_gradients, matched, samples, settings_of
from assay.methods.jepa_guidance.study import STRENGTHS, STUDY, run
from assay.methods.jepa_guidance.study_claims import KEPT, WEIGHTS
from assay.methods.jepa_guidance.study_figures import panels
from assay.methods.jepa_guidance.study_material import Bench
from assay.study import FinishedTrial, Trial

QUICKLY = (
    ("lejepa", {"part": "calibration", "weight": WEIGHTS[-1]}),
    *((arm, {"part": "guidance", "condition": "none"}) for arm in ("plain", "jepa", "random", "temperature")),
    ("base", {"part": "ablation"}),
    ("surrogate", {"part": "surrogate", "k": 9, "q": 2}),
)


def trial(arm, **setting):
    return Trial(arm, {"size": "tiny", "data": "digits", **setting}, 0)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.mktemp("jepa-study")))
        for kept in (study_material.scorer, study_material.generator):
            kept.cache_clear()
        yield


@pytest.fixture(scope="module")
def measured(own_cache):
    planned = [trial(arm, **setting) for arm, setting in QUICKLY]
    return {one: run(one) for one in planned}


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.jepa_guidance.study import STUDY; list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'diffusers', 'transformers', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_claim_has_trials_and_no_trial_is_there_twice(scale):
    planned = list(STUDY.trials(scale, None))
    assert len({one.id for one in planned}) == len(planned)
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing >= 5, claim.id
        for condition in claim.preconditions:
            assert any(one.arm == condition.arm for one in planned)


def test_the_parts_name_what_the_study_plans():
    planned = list(STUDY.trials("quick", None))
    assert {one.setting["part"] for one in planned} == set(experiments.PARTS)
    swept = {one.arm for one in planned if one.setting["part"] == "guidance"}
    assert swept == {"plain", *STRENGTHS}


def test_claims_speak_of_metrics_that_are_measured(measured):
    for claim in STUDY.claims:
        rows = [
            found
            for one, found in measured.items()
            if one.setting["part"] == claim.where["part"] and one.arm != "plain"
        ]
        if claim.metric != "matched_alignment":
            assert any(claim.metric in found for found in rows), claim.id


def test_measurements_are_finite_and_shares_are_shares(measured):
    shares = ("precision", "recall", "coverage", "world_rare", "generator_rare", "entropy", "divergence")
    for one, found in measured.items():
        assert found, one
        for name, value in found.items():
            assert math.isfinite(value), (one, name)
            if name.removeprefix("matched_").split(":")[0] in shares:
                assert -1e-9 <= value <= 1 + 1e-9, (one, name)


def test_every_trial_has_diversity_beside_rarity(measured):
    for one, found in measured.items():
        if one.setting["part"] == "guidance":
            for metric in ("knn_world", "recall", "coverage", "entropy"):
                assert f"matched_{metric}" in found
                assert f"{metric}:0" in found


def test_a_trial_repeats_without_its_samples(measured, monkeypatch):
    one = trial("jepa", part="guidance", condition="none")
    monkeypatch.setattr(study_material, "cached", _uncached)
    bench = Bench.of(one)
    monkeypatch.setattr(experiments, "kept_samples", lambda bench, what, draw: _levels(draw()))
    again = samples(bench, "none", "jepa", STRENGTHS["jepa"][0])
    monkeypatch.undo()
    np.testing.assert_array_equal(again, samples(bench, "none", "jepa", STRENGTHS["jepa"][0]))


def _uncached(*_):
    raise AssertionError("models of a bench are made once")


def _levels(images):
    return (images * 255).round().to(torch.uint8).numpy().astype(np.float32) / 255


def test_all_arms_of_a_seed_start_from_one_noise(measured):
    """With the strength at zero, every guidance leaves the plain sampler's images."""
    bench = Bench("tiny", "digits", 0)
    plain = samples(bench, "none", "plain")
    options, config = settings_of("random", 0.0, bench)
    found = experiments._draw(bench, "none", config, options)
    np.testing.assert_array_equal(_levels(found), plain)


def test_boosted_noise_is_not_the_noise_of_the_steps(own_cache):
    bench = Bench("tiny", "digits", 0)
    options, _ = settings_of("boost-and-skip", 2.0, bench)
    steps = torch.randn(options["latents"].shape, generator=experiments._noise(bench))
    together = torch.stack([options["latents"].flatten(), steps.flatten()])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.1


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 9)), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_the_matched_point_is_valid_and_no_commoner_than_the_start(points):
    path = [{"recall": r, "precision": p, "knn_world": k} for r, p, k in points]
    best, where = matched(path)
    assert 0 <= where <= len(path) - 1
    assert best["recall"] >= KEPT * path[0]["recall"] - 1e-12
    assert best["precision"] >= KEPT * path[0]["precision"] - 1e-12
    assert best["knn_world"] >= path[0]["knn_world"]


def test_the_matched_point_lies_where_recall_reaches_its_limit():
    path = [
        {"recall": 0.5, "precision": 1.0, "knn_world": 1.0},
        {"recall": 0.3, "precision": 1.0, "knn_world": 2.0},
    ]
    best, where = matched(path)
    assert where == pytest.approx(0.5)
    assert best["knn_world"] == pytest.approx(1.5)
    assert best["recall"] == pytest.approx(0.4)


def test_a_collapse_is_not_a_matched_point():
    path = [
        {"recall": 0.5, "precision": 0.9, "knn_world": 1.0},
        {"recall": 0.0, "precision": 1.0, "knn_world": 3.0},
    ]
    assert matched(path)[0]["recall"] >= 0.4


def test_exact_gradients_of_a_map_with_known_singular_values():
    """f_i = softplus(x_i): the singular values are sigmoids, and d log sigmoid / dx is 1 - sigmoid."""
    z = torch.tensor([[[[2.0, -1.0], [0.5, -2.0]]]])
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Softplus())
    leading, full = exact_gradients(encoder, z, 2)
    expected = 1 - torch.sigmoid(z.double())
    assert torch.allclose(full, expected, atol=1e-9)
    largest = torch.tensor([[[[True, False], [True, False]]]])
    assert torch.allclose(leading, torch.where(largest, expected, 0.0), atol=1e-9)


def test_the_error_of_the_surrogate_adds_up(measured):
    found = measured[trial("surrogate", part="surrogate", k=9, q=2)]
    assert found["identity"] < 1e-6
    assert found["negative_error"] < 1e-9
    assert found["cosine_leading"] > 0.9


def test_shuffled_pixels_keep_the_brightness():
    images = torch.rand(4, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    shuffled = experiments._shuffled(images, 0)
    assert not torch.equal(shuffled, images)
    assert torch.allclose(shuffled.flatten(1).sort().values, images.flatten(1).sort().values)


def test_figures(measured):
    finished = [FinishedTrial(one, "ok", found) for one, found in measured.items()]
    drawn = panels(finished)
    assert set(drawn) == {"images", "paths", "matched", "classes", "calibration", "surrogate", "ablation"}
    for panel in drawn.values():
        assert panel.caption
        panel.figure.canvas.draw()
        plt.close(panel.figure)


def test_figures_leave_out_what_was_not_measured(measured):
    finished = [
        FinishedTrial(one, "ok", found)
        for one, found in measured.items()
        if one.setting["part"] == "surrogate"
    ]
    drawn = panels(finished)
    assert set(drawn) == {"surrogate"}
    plt.close(drawn["surrogate"].figure)
    assert panels([]) == {}


@pytest.mark.slow
def test_all_smoke_trials_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    for kept in (study_material.scorer, study_material.generator):
        kept.cache_clear()
    found = {one: run(one) for one in STUDY.trials("smoke", 1)}
    drawn = panels([FinishedTrial(one, "ok", measured) for one, measured in found.items()])
    assert {"mnist", "conditions"} <= set(drawn)
    for panel in drawn.values():
        plt.close(panel.figure)
    for kept in (study_material.scorer, study_material.generator):
        kept.cache_clear()
