"""The study measures what it says: folds, shared work, parts on a tiny random model, figures."""

import math
import subprocess
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from assay.methods.crh import experiments, written_pairs
from assay.methods.crh.study import CELLS, DESIGNS, DIRECTIONS, STUDY, WRITTEN, run
from assay.methods.crh.study_figures import panels
from assay.methods.crh.study_material import Bench, Sensitivities, kept, model_of, sensitivities
from assay.study import FinishedTrial, Trial

TINY = "tiny-random"


def trial(arm, part, seed=0, **setting):
    return Trial(arm, {"part": part, "model": TINY, "concept": "dogs", **setting}, seed)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.mktemp("crh-study")))
        yield


@pytest.fixture(scope="module")
def measured(own_cache):
    return {one: run(one) for one in STUDY.trials("smoke", 1)}


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.crh.study import STUDY; list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_every_claim_has_trials_and_no_trial_is_there_twice(scale):
    planned = list(STUDY.trials(scale, None))
    assert len({one.id for one in planned}) == len(planned)
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing > 0, claim.id
        for condition in claim.preconditions:
            assert any(one.arm == condition.arm for one in planned)


def test_every_claim_speaks_of_a_metric_that_its_trials_measure(measured):
    for claim in STUDY.claims:
        if claim.where["part"] == "law":
            continue
        rows = [
            found
            for one, found in measured.items()
            if one.setting["part"] == claim.where["part"] and one.arm in claim.arms()
        ]
        assert any(claim.metric in found for found in rows), claim.id


def test_no_paper_value_is_made_up():
    assert {claim.paper for claim in STUDY.claims} == {"not available"}


def test_smoke_measurements_are_finite_and_shares_are_shares(measured):
    shares = ("shown", "corrupted", "never", "covered", "facilitating", "suppressing", "agrees", "preferred")
    for one, found in measured.items():
        assert found, one
        for name, value in found.items():
            # A sample that never fires has an infinite onset, in the figure alone.
            assert math.isfinite(value) or name.startswith("onset:"), (one, name)
            assert name not in shares or 0 <= value <= 1, (one, name)


def test_a_trial_repeats(measured):
    for one in (
        trial("own-normal", "map"),
        trial("ridge", "sector", frame="planted"),
        trial("axis", "samples"),
    ):
        assert run(one) == measured[one]


def test_folds_hold_out_every_sample_once_and_share_no_sentence():
    for source in (TINY, "embedded"):
        benches = [Bench(source, "music", fold) for fold in range(DESIGNS[source].folds)]
        held_out = [i for bench in benches for i in bench.split()[1]]
        assert sorted(held_out) == list(range(DESIGNS[source].questions))
        for bench in benches:
            train, test = bench.split()
            sentences = [
                {
                    text
                    for i in side
                    for text in (bench.pairs[i].resp_with_concept, bench.pairs[i].resp_no_concept)
                }
                for side in (train, test)
            ]
            assert not sentences[0] & sentences[1]
    # Further seeds draw other partitions.
    assert Bench("embedded", "music", 3).split() != Bench("embedded", "music", 0).split()


def test_all_concepts_of_the_design_have_pairs():
    assert set(DESIGNS["embedded"].concepts) == set(written_pairs().concepts)


def test_a_cylinder_has_not_seen_the_held_out_samples(own_cache):
    bench = Bench(TINY, "dogs", 0)
    train, _ = bench.split()
    expected = bench.differences()[train].mean(dim=0)
    assert torch.allclose(bench.cylinder().mean_diff, expected)


def test_gradients_are_taken_on_the_axis_that_has_not_seen_the_sample(own_cache):
    found = sensitivities(Bench(TINY, "dogs", 1))
    for fold in (0, 2):
        bench = Bench(TINY, "dogs", fold)
        i = bench.split()[1][0]
        cylinder = bench.cylinder()
        again = bench.margin().grad(i, 0.7 * cylinder.axis_norm * cylinder.axis)
        assert torch.allclose(found.gradients[i], again.double(), atol=1e-6)


def test_normals_are_orthogonal_unit_vectors():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    axis = rows[0] / rows[0].norm()
    normals = Sensitivities(rows[1:], np.zeros(4), np.zeros(4, dtype=bool)).normals(axis)
    assert torch.allclose(normals.norm(dim=1), torch.ones(4, dtype=torch.float64))
    assert float((normals @ axis).abs().max()) < 1e-12


def test_shared_work_is_done_once(own_cache):
    calls = []

    def compute():
        calls.append(1)
        return {"value": np.arange(3)}

    for _ in range(2):
        assert kept(TINY, "counting", {"concept": "dogs"}, compute)["value"].tolist() == [0, 1, 2]
    kept(TINY, "counting", {"concept": "music"}, compute)
    assert len(calls) == 2


def test_answers_are_pushed_equally_far_along_the_axis(own_cache):
    bench = Bench(TINY, "dogs", 0)
    cylinder = bench.cylinder()
    for arm in ("axis", "own-sector", "opposite-sector"):
        vectors = experiments._answer_vectors(cylinder, bench, arm)
        assert torch.allclose(
            vectors @ cylinder.axis, torch.full((len(vectors),), 2 * cylinder.axis_norm, dtype=torch.float64)
        )
    own, opposite = (
        experiments._answer_vectors(cylinder, bench, arm) for arm in ("own-sector", "opposite-sector")
    )
    normal = cylinder.geometry(bench.differences()[bench.tested()]).normal
    assert bool(((own * normal).sum(dim=1) > 0).all())
    assert bool(((opposite * normal).sum(dim=1) < 0).all())
    assert torch.allclose(own.norm(dim=1), opposite.norm(dim=1))


def test_the_own_direction_without_its_normal_part_is_the_axis(own_cache, measured):
    """At p = 1 the onset is that of the axis, stretched by the cosine."""
    bench = Bench(TINY, "dogs", 0)
    cylinder = bench.cylinder()
    i = bench.tested()[0]
    shrunk = cylinder.penalised(bench.differences()[i], 1.0, 1.0)
    cosine = float(cylinder.geometry(bench.differences()[[i]]).cosine[0])
    assert torch.allclose(shrunk, cosine * cylinder.axis)


def test_planted_sectors_are_found(measured):
    for predictor in ("constant", "nearest", "ridge"):
        found = measured[trial(predictor, "sector", frame="planted")]
        assert found["score"] > 0.5, predictor


def test_the_parts_name_what_the_study_plans():
    parts = {one.setting["part"] for one in STUDY.trials("quick", None)}
    assert parts == set(experiments.PARTS)
    assert set(experiments.CELLS) == set(CELLS)
    arms = {one.arm for one in STUDY.trials("quick", None) if one.setting["part"] == "axis"}
    assert arms == {*DIRECTIONS, "angular", "instruction"}


def test_the_tiny_model_is_the_same_every_time():
    model, tokenizer = model_of(TINY)
    model_of.cache_clear()
    again, _ = model_of(TINY)
    ids = torch.tensor([tokenizer("A dog.")["input_ids"]])
    assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)


def test_the_law_is_searched_over_all_concepts(own_cache, monkeypatch):
    monkeypatch.setitem(DESIGNS, TINY, replace(DESIGNS[TINY], concepts=WRITTEN[:4]))
    planned = Trial("law", {"part": "law", "model": TINY}, 0)
    assert planned in list(STUDY.trials("smoke", None))
    found = run(planned)
    assert found["concepts"] == 4
    assert 1 / 20 <= found["p_value"] <= 1
    assert -1 <= found["correlation"] <= 1
    assert found["relative_error"] > 0


def test_figures(measured):
    finished = [FinishedTrial(one, "ok", found) for one, found in measured.items()]
    drawn = panels(finished)
    assert set(drawn) == {"cylinder", "axes", "sectors", "penalty", "answers", "energy", "prediction"}
    for panel in drawn.values():
        assert panel.caption
        panel.figure.canvas.draw()
        plt.close(panel.figure)


def test_figures_leave_out_what_was_not_measured(measured):
    finished = [
        FinishedTrial(one, "ok", found) for one, found in measured.items() if one.setting["part"] == "map"
    ]
    drawn = panels(finished)
    assert set(drawn) == {"sectors"}
    plt.close(drawn["sectors"].figure)
    assert panels([]) == {}
