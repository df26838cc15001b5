"""Metrics of samples against closed forms and small cases that can be counted by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.errors import InputError
from assay.methods.jepa_guidance import (
    ImageJudge,
    average_knn_distance,
    class_entropy,
    class_shares,
    frechet_distance,
    jensen_shannon,
    local_outlier_factor,
    manifold_metrics,
    rarity_score,
)

LINE = np.arange(10.0)[:, None]


def test_knn_distance_counts_neighbours():
    found = average_knn_distance(np.array([[0.0], [20.0]]), LINE, k=3)
    np.testing.assert_allclose(found, [1.0, 12.0])  # 0, 1, 2 and 11, 12, 13


def test_rarity_is_the_smallest_ball_that_holds_the_sample():
    # The second nearest neighbour is 1 away in the middle and 2 away at the ends; the last row lies alone.
    reference = np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
    found = rarity_score(np.array([[1.5], [3.2], [9.5], [100.0]]), reference, k=2)
    np.testing.assert_allclose(found[:3], [1.0, 2.0, 8.0])
    assert np.isnan(found[3])


def test_outliers_have_a_factor_above_one():
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    inside, outside = local_outlier_factor(np.array([[5.5, 5.5], [40.0, 40.0]]), grid)
    assert inside == pytest.approx(1.0, abs=0.1)
    assert outside > 3


def test_a_set_equals_itself_and_a_collapse_has_no_recall():
    generator = np.random.default_rng(0)
    real = generator.normal(size=(200, 4))
    same = manifold_metrics(real, real)
    assert same.precision == same.recall == same.coverage == 1.0
    collapsed = manifold_metrics(real[:1] + 1e-3 * generator.normal(size=(200, 4)), real)
    assert collapsed.precision == 1.0
    assert collapsed.recall < 0.05
    assert collapsed.coverage < 0.1


def test_prdc_prints_nothing(capsys):
    manifold_metrics(np.random.default_rng(0).normal(size=(20, 2)), LINE @ np.ones((1, 2)))
    assert capsys.readouterr().out == ""


def test_frechet_distance_of_normal_laws():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(500, 3))
    assert frechet_distance(rows, rows) == pytest.approx(0.0, abs=1e-9)
    assert frechet_distance(rows + np.array([3.0, 0.0, 4.0]), rows) == pytest.approx(25.0)
    # Of N(m, C) and N(2m, 4C): |m|^2 + tr(C) (2 - 1)^2.
    expected = np.square(rows.mean(0)).sum() + np.trace(np.cov(rows, rowvar=False))
    assert frechet_distance(2 * rows, rows) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(arrays(float, (12, 2), elements=st.floats(-5, 5)), arrays(float, (9, 2), elements=st.floats(-5, 5)))
def test_frechet_distance_is_symmetric_and_not_negative(first, second):
    one, other = frechet_distance(first, second), frechet_distance(second, first)
    assert one == pytest.approx(other, abs=1e-5)
    assert one >= -1e-6


def test_entropy_and_divergence_of_class_shares():
    uniform, single, other = np.full(10, 0.1), np.eye(10)[3], np.eye(10)[4]
    assert class_entropy(uniform) == pytest.approx(1.0)
    assert class_entropy(single) == 0.0
    assert jensen_shannon(uniform, uniform) == 0.0
    assert jensen_shannon(single, other) == pytest.approx(1.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
def test_class_shares_add_up(labels):
    shares = class_shares(np.array(labels), 5)
    assert shares.sum() == pytest.approx(1.0)
    assert 0.0 <= class_entropy(shares) <= 1.0 + 1e-12


def test_the_judge_knows_classes_and_keeps_distances():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 40)
    images = generator.uniform(0, 0.2, size=(80, 1, 4, 4)) + labels[:, None, None, None] * 0.6
    judge = ImageJudge(components=3).fit(images, labels)
    assert (judge.classes(images) == labels).all()
    assert judge.features(images).shape == (80, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: average_knn_distance(LINE, LINE[:3], k=5),
        lambda: average_knn_distance(np.zeros((3, 2)), LINE),
        lambda: average_knn_distance(np.zeros(3), LINE),
        lambda: rarity_score(LINE[:0], LINE),
        lambda: manifold_metrics(LINE[:2], LINE),
        lambda: frechet_distance(LINE[:1], LINE),
        lambda: class_shares(np.array([], dtype=int), 3),
    ],
)
def test_what_cannot_be_measured_is_refused(call):
    with pytest.raises(InputError):
        call()
