"""Planted faults are faults, right citations are right, and the curves are those of textbooks."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_score, roc_auc_score

from assay.methods.dualgraph import experiments
from assay.methods.dualgraph.citation_faults import (
    FAULTS,
    CitedClaim,
    area_under_roc,
    cited_claims,
    precision_at_recall,
    reworded,
    roc_points,
    with_fault,
)
from assay.methods.dualgraph.cmake_documentation import documentation
from assay.study import Trial


@pytest.fixture(scope="module")
def documented():
    return documentation()


@pytest.mark.parametrize("fault", FAULTS)
def test_sources_state_their_claims_and_faults_are_not_in_them(documented, fault):
    right = cited_claims(documented, 40, 1000, fault=fault)
    wrong = with_fault(right, documented, fault, 1000)
    assert len(right) == len(wrong) == 40
    assert len({claim.claim for claim in right}) == 40
    for before, after in zip(right, wrong, strict=True):
        assert before.claim in before.source
        if fault == "source":
            assert after.claim == before.claim
            assert after.source != before.source
        else:
            assert after.source == before.source
            assert after.claim != before.claim
            # The new number or name is foreign to the source.
            new = set(re.findall(r"[\w.]+", after.claim)) - set(re.findall(r"[\w.]+", before.claim))
            assert new
            assert all(not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", before.source) for word in new)
    assert cited_claims(documented, 40, 1000, fault=fault) == right
    assert cited_claims(documented, 40, 1001, fault=fault) != right


def test_sources_rotate_so_that_nobody_keeps_his_own(documented):
    claims = [CitedClaim(f"claim {i}", f"source {i}") for i in range(7)]
    for seed in range(20):
        wrong = with_fault(claims, documented, "source", seed)
        assert all(before.source != after.source for before, after in zip(claims, wrong, strict=True))
        assert sorted(claim.source for claim in wrong) == sorted(claim.source for claim in claims)


def test_rewording_changes_words_and_keeps_names_and_numbers():
    assert reworded("If the directory is given, CMake uses FOO_DIRECTORY 3.14.") == (
        "CMake employs FOO_DIRECTORY 3.14 if the folder is supplied."
    )
    assert reworded("See CMAKE_USE_X.") == "Consult CMAKE_USE_X."
    assert reworded("Nothing to swap here.") == "Nothing to swap here."


scores = st.lists(st.integers(0, 10).map(float), min_size=2, max_size=30).map(np.array)


@settings(max_examples=60, deadline=None)
@given(right=scores, wrong=scores)
def test_the_area_is_scikit_learns(right, wrong):
    truth = np.concatenate([np.ones(len(right)), np.zeros(len(wrong))])
    expected = roc_auc_score(truth, np.concatenate([right, wrong]))
    assert area_under_roc(right, wrong) == pytest.approx(expected)


def test_precision_at_a_recall():
    right = np.arange(1.0, 101.0)
    # 95 of 100 right ones lie at 6 and above; so does none, half, or all of the wrong ones.
    assert precision_at_recall(right, np.zeros(100)) == 1.0
    assert precision_at_recall(right, np.full(100, 50.0)) == pytest.approx(0.95 / 1.95)
    wrong = np.concatenate([np.zeros(50), np.full(50, 50.0)])
    truth = np.concatenate([np.ones(100), np.zeros(100)])
    kept = np.concatenate([right, wrong]) >= 6
    assert precision_at_recall(right, wrong) == pytest.approx(precision_score(truth, kept))


def test_points_of_the_curve():
    right, wrong = np.array([0.9, 0.8, 0.3, 0.2]), np.array([0.7, 0.6, 0.5, 0.1])
    assert roc_points(right, wrong, (0.0, 0.25, 0.75, 1.0)) == [0.5, 0.5, 1.0, 1.0]


def test_a_lexical_check_finds_faults():
    for fault, wording in (("source", "verbatim"), ("number", "verbatim"), ("name", "reworded")):
        setting = {"part": "citations", "fault": fault, "wording": wording}
        measured = experiments.run_citations(Trial("lexical", setting, 1000))
        assert measured["auc"] > 0.9
        assert measured["kept"] > measured["missed"] + 0.5
        curve = [measured[f"roc:{share}"] for share in experiments.ROC_GRID]
        assert curve == sorted(curve)
        assert curve[-1] == 1.0


def test_unknown_faults_are_refused():
    setting = {"part": "citations", "fault": "colour", "wording": "verbatim"}
    with pytest.raises(ValueError, match="unknown fault 'colour'"):
        experiments.run_citations(Trial("lexical", setting, 0))
