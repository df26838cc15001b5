"""The study measures what it says, repeats itself, and imports without heavy libraries."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from assay.methods.panorama_watermark import experiments
from assay.methods.panorama_watermark.frames import match_p_value
from assay.methods.panorama_watermark.study import ATTACKS, MAIN_ARMS, PANORAMAS, STUDY, run
from assay.methods.panorama_watermark.study_claims import CLAIMS
from assay.study import FinishedTrial, Trial


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of this module's own: marked images are made once for all its tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def trial(arm, seed=0, **setting):
    return Trial(arm, {"panorama": "sky", **setting}, seed)


def test_importing_the_study_loads_no_heavy_library():
    code = (
        "import sys; from assay.methods.panorama_watermark.study import STUDY; "
        "list(STUDY.trials('quick', None)); "
        "sys.exit(bool({'numba', 'torch', 'PIL', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_agree():
    assert set(experiments.ATTACKS) == set(ATTACKS)
    assert set(experiments.panoramas()) == set(PANORAMAS)
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_trials_are_different(scale):
    planned = list(STUDY.trials(scale, 2))
    assert len({each.id for each in planned}) == len(planned)
    assert {str(each.setting["part"]) for each in planned} == set(experiments.PARTS)


def test_every_claim_has_trials_at_the_quick_scale():
    planned = list(STUDY.trials("quick", None))
    for claim in STUDY.claims:
        found = claim.evidence(planned, {})
        assert found.rows + found.missing > 0, claim.id
        for condition in claim.preconditions:
            rows = [FinishedTrial(one, "ok", {condition.metric: 1.0}) for one in planned]
            assert condition.measure(rows)[0] == 1.0, claim.id


def test_a_trial_repeats_itself_whatever_ran_before(tmp_path, monkeypatch):
    wanted = trial("closed_form", part="attack", attack="rotation-jpeg50", seed=1)
    first = run(wanted)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    run(trial("closed_form", part="attack", attack="noise10", seed=2))
    assert run(wanted) == first


def test_our_mark_survives_and_the_planar_one_does_not():
    ours, planar, fixed = (
        run(trial(arm, part="attack", attack="rotation"))
        for arm in ("closed_form", "planar", "fixed-directions")
    )
    assert ours["bit_accuracy"] > 0.98
    assert ours["message"] == 1.0
    assert ours["wrong_message"] == 0.0
    for other in (planar, fixed):
        assert 0.35 < other["bit_accuracy"] < 0.65
        assert other["message"] == 0.0
        assert other["ws_psnr"] == pytest.approx(ours["ws_psnr"], abs=0.1)
        untouched = run(trial("planar", part="attack", attack="none"))
        assert untouched["bit_accuracy"] == untouched["message"] == untouched["found"] == 1.0


def test_all_arms_see_the_same_attack():
    image = experiments.panorama("sky")
    for attack in ("rotation", "noise10", "chain"):
        first, again = (experiments.attacked(image, attack, "sky", 3) for _ in range(2))
        other = experiments.attacked(image, attack, "sky", 4)
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
    turned = experiments.attacked(image, "yaw90", "sky", 0)
    assert np.array_equal(turned, np.roll(image, 128, axis=1))


def test_keys_and_payloads_differ_between_panoramas_and_seeds():
    drawn = {
        (experiments.key_of(name, seed), experiments.payload_of(name, seed))
        for name in ("sky", "lab")
        for seed in range(3)
    }
    assert len({key.id for key, _ in drawn}) == len({payload for _, payload in drawn}) == 6


def test_what_is_counted():
    word = np.array([0, 1, 1, 0] * 30 + [0] * 7, np.uint8)
    right = experiments._bits(1.0 - 2.0 * word, word)
    assert right["bit_accuracy"] == 1.0
    assert right["information"] == 127.0
    assert right["log10_p"] == pytest.approx(-127 * np.log10(2))
    soft = 1.0 - 2.0 * word
    soft[::2] *= -1
    half = experiments._bits(soft, word, tries=3)
    assert half["bit_accuracy"] == pytest.approx(63 / 127)
    assert half["information"] == 0.0
    assert half["found"] == 0.0
    # h(0.11) is half a bit.
    assert experiments._binary_entropy(0.110028) == pytest.approx(0.5, abs=1e-5)


def test_soft_values_are_invariant_on_the_right_grid_only():
    found = run(trial("closed_form", part="invariance"))
    assert found["change"] < 1e-12
    assert found["bispectrum_change"] < 1e-12
    assert found["small_grid_change"] > 1e-4
    assert found["small_grid_invariant"] == 0.0


@pytest.mark.parametrize("arm", ["original", "other-key"])
def test_other_keys_match_as_coins_do(arm, monkeypatch):
    monkeypatch.setattr(experiments, "KEYS", 12)
    found = run(trial(arm, part="keys"))
    counts = {int(name[8:]): value for name, value in found.items() if name.startswith("matches:")}
    assert sum(counts.values()) == found["keys"] == 12
    assert found["mean_matches"] == pytest.approx(sum(k * v for k, v in counts.items()) / 12)
    passed = sum(value for count, value in counts.items() if match_p_value(count, 127) <= 0.05)
    assert found["beyond_level"] == pytest.approx(passed / 12 - 0.05)
    assert found["found"] == 0.0
    assert 55 < found["mean_matches"] < 72


def test_more_bits_cost_fidelity():
    found = {bits: run(trial("closed_form", part="capacity", bits=bits)) for bits in (127, 255)}
    assert found[127]["ws_psnr"] > found[255]["ws_psnr"] + 2
    assert found[255]["bits"] == 255
    assert found[255]["bit_accuracy"] == 1.0


def test_alignment_is_what_a_planar_mark_needs():
    near, far = (run(trial("planar", part="alignment", angle=angle)) for angle in (0.0, 4.0))
    assert near["bit_accuracy"] > 0.98
    assert far["bit_accuracy"] < 0.65
    assert run(trial("closed_form", part="alignment", angle=4.0))["bit_accuracy"] > 0.98


def test_search_finds_a_turn_of_the_heading():
    found = run(trial("planar", part="search", attack="yaw90", rotations=64))
    assert found["found"] == 1.0
    assert found["bit_accuracy"] == 1.0


def test_figures_are_drawn_from_what_there_is():
    import matplotlib.pyplot as plt

    assert STUDY.figures([]) == {}
    planned = [
        trial(arm, part="attack", attack=attack) for arm in MAIN_ARMS for attack in ("none", "rotation")
    ]
    planned += [trial(arm, part="alignment", angle=0.0) for arm in MAIN_ARMS]
    planned += [trial("original", part="keys"), trial("closed_form", part="capacity", bits=127)]
    finished = [FinishedTrial(one, "ok", run(one)) for one in planned]
    drawn = STUDY.figures(finished)
    assert set(drawn) == {"images", "spectrum", "attacks", "detection", "capacity", "alignment"}
    shown = SimpleNamespace(**{name: panel.figure.axes for name, panel in drawn.items()})
    assert len(shown.images) == 4
    numbers = [text.get_text() for text in shown.attacks[0].texts]
    assert "1.000" in numbers
    for panel in drawn.values():
        assert len(panel.caption) > 60
        panel.figure.canvas.draw()
        plt.close(panel.figure)


@pytest.mark.slow
def test_a_learned_engine_reads_panoramas_that_it_was_not_trained_on(monkeypatch):
    monkeypatch.setattr(experiments, "TRAINING_STEPS", 150)
    assert "sky" not in experiments.TRAINING
    found = {attack: run(trial("learned", part="attack", attack=attack)) for attack in ("none", "rotation")}
    assert found["none"]["bits"] == 127
    assert found["none"]["bit_accuracy"] > 0.7
    assert abs(found["rotation"]["bit_accuracy"] - found["none"]["bit_accuracy"]) < 0.1
