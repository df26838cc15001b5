"""The conditioner: what it does to a spectrum, what it computes it from, and what it refuses."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from assay.errors import InputError
from assay.methods.cond_dp import LeakageError, PublicConditioner, predicted_gain
from assay.methods.cond_dp import conditioner as conditioner_module
from assay.methods.cond_dp import gram as gram_module


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    return (rng.normal(size=(300, 8)) * np.arange(1, 9) ** -1.5) @ rotation + 0.3


def quiet(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments, **options)


def one_hot(n, seed=0):
    rng = np.random.default_rng(seed)
    columns = [
        np.eye(4)[rng.integers(4, size=n)],
        np.eye(3)[rng.integers(3, size=n)],
        rng.normal(size=(n, 2)),
    ]
    return np.hstack(columns)


@pytest.mark.parametrize("scale", ["fixed", "learned", None])
@pytest.mark.parametrize("standardize", [False, True])
def test_the_conditioned_gram_matrix_is_a_multiple_of_the_identity(X, scale, standardize):
    fitted = PublicConditioner(gamma=0, scale=scale, standardize=standardize).fit(X)
    Z = fitted.transform(X)
    gram = Z.T @ Z
    c = np.trace(gram) / 8
    np.testing.assert_allclose(gram, c * np.eye(8), atol=1e-8 * c)
    if scale is None:
        assert c == pytest.approx(1, abs=1e-8)
    else:
        plain = fitted.standardized(X)
        assert (Z**2).sum() == pytest.approx((plain**2).sum())


def test_the_matrix_is_symmetric_and_positive_and_the_spectrum_sorted(X):
    fitted = PublicConditioner().fit(X)
    np.testing.assert_array_equal(fitted.matrix_, fitted.matrix_.T)
    assert np.linalg.eigvalsh(fitted.matrix_)[0] > 0
    assert (np.diff(fitted.spectrum_) <= 0).all()
    np.testing.assert_allclose(fitted.spectrum_, np.linalg.svd(X, compute_uv=False), rtol=1e-6)
    assert 1 <= fitted.effective_rank_ <= 8
    np.testing.assert_allclose(fitted.transform(X), fitted.ratio_ * X @ fitted.matrix_, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(1e-4, 0.5))
def test_power_and_damping_follow_the_formula(seed, power, gamma):
    X = np.random.default_rng(seed).normal(size=(30, 4)) * [3, 1, 0.1, 0.01]
    fitted = PublicConditioner(power=power, gamma=gamma, scale=None).fit(X)
    _, s, V = np.linalg.svd(X, full_matrices=False)
    expected = (V.T * (s**2 + (gamma * s[0]) ** 2) ** (-power / 2)) @ V
    np.testing.assert_allclose(fitted.matrix_, expected, rtol=1e-6, atol=1e-9)


def test_power_zero_is_the_identity(X):
    fitted = PublicConditioner(power=0).fit(X)
    assert fitted.is_identity_
    np.testing.assert_array_equal(fitted.transform(X), X)
    np.testing.assert_array_equal(fitted.matrix_, np.eye(8))
    assert PublicConditioner.identity(8).is_identity_


def test_chunks_sparse_and_memory_maps_give_the_same(X, monkeypatch, tmp_path):
    whole = PublicConditioner(standardize=True).fit(X)
    monkeypatch.setattr(gram_module, "CHUNK_ENTRIES", 7 * 8)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for other in (
        PublicConditioner(standardize=True).fit(X),
        PublicConditioner(standardize=True).fit(mapped),
        PublicConditioner(standardize=True).fit(scipy.sparse.csr_array(X)),
        PublicConditioner(standardize=True).fit_chunks(X[i : i + 50] for i in range(0, 300, 50)),
    ):
        np.testing.assert_allclose(other.matrix_, whole.matrix_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(other.mean_, whole.mean_)
    np.testing.assert_allclose(
        whole.transform(scipy.sparse.csr_array(X)), whole.transform(X), rtol=1e-8, atol=1e-8
    )


def test_a_large_mean_does_not_spoil_the_variance():
    rng = np.random.default_rng(0)
    X = np.column_stack([2013 + 1e-3 * rng.normal(size=500), rng.normal(size=500)])
    fitted = PublicConditioner(standardize=True, gamma=0).fit(X)
    np.testing.assert_allclose(fitted.scale_, X.std(axis=0), rtol=1e-6)
    Z = fitted.transform(X)
    np.testing.assert_allclose(np.cov(Z.T, bias=True), np.eye(2), atol=1e-6)


def test_rank_deficient_features_are_damped():
    X = one_hot(400)
    with pytest.warns(UserWarning, match="rank 8 of 9"):
        fitted = PublicConditioner().fit(X)
    assert np.isfinite(fitted.matrix_).all()
    assert fitted.rank_ == 8
    # A direction that no row has is not amplified: it is dropped.
    null = np.array([1, 1, 1, 1, -1, -1, -1, 0, 0]) / np.sqrt(7)
    assert np.abs(fitted.matrix_ @ null).max() < 1e-6
    with pytest.raises(InputError, match="rank 8 of 9 columns, and gamma is 0"):
        PublicConditioner(gamma=0).fit(X)


def test_more_columns_than_rows():
    X = np.random.default_rng(0).normal(size=(6, 20))
    fitted = quiet(PublicConditioner().fit, X)
    assert np.isfinite(fitted.transform(X)).all()
    assert fitted.rank_ == 6


def test_constant_columns_are_dropped_with_a_notice(X):
    table = pd.DataFrame(np.column_stack([X, np.full(300, 7.0)]), columns=[*"abcdefgh", "same"])
    with pytest.warns(UserWarning, match="constant public columns are not used: same"):
        fitted = PublicConditioner(standardize=True).fit(table)
    assert fitted.notes_
    np.testing.assert_array_equal(fitted.matrix_[-1], 0)
    changed = table.assign(same=8.0)
    np.testing.assert_array_equal(fitted.transform(changed), fitted.transform(table))
    with pytest.raises(InputError, match="every public column is constant"):
        quiet(PublicConditioner().fit, np.ones((5, 2)))


def test_low_rank_with_a_common_gain_for_the_rest(X):
    full = PublicConditioner(scale=None).fit(X)
    low = PublicConditioner(rank=3, scale=None).fit(X)
    np.testing.assert_allclose(low.gains_, full.gains_[:3])
    tail = np.sqrt((full.spectrum_[3:] ** 2).mean())
    assert low.tail_gain_ == pytest.approx((tail**2 + (3e-3 * full.spectrum_[0]) ** 2) ** -0.5, rel=1e-6)
    np.testing.assert_allclose(low.transform(X), X @ low.matrix_, atol=1e-10)


def test_wide_sparse_features_use_a_randomised_decomposition(monkeypatch):
    monkeypatch.setattr(conditioner_module, "WIDE", 100)
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((500, 150), density=0.1, rng=rng, format="csr")
    X = scipy.sparse.csr_array(X.multiply(np.arange(1, 151) ** -0.8))
    wide = PublicConditioner(rank=20, scale=None).fit(X)
    exact = np.linalg.svd(X.toarray(), compute_uv=False)
    np.testing.assert_allclose(wide.spectrum_[:8], exact[:8], rtol=1e-3)
    assert wide.components_.shape == (20, 150)
    tail = np.sqrt((exact[20:] ** 2).mean())
    assert wide.tail_gain_ == pytest.approx((tail**2 + (3e-3 * exact[0]) ** 2) ** -0.5, rel=1e-2)
    np.testing.assert_allclose(wide.transform(X), wide.transform(X.toarray()), atol=1e-10)
    spread = np.linalg.svd(wide.transform(X), compute_uv=False)
    assert spread[0] / spread[-1] < 0.2 * exact[0] / exact[-1]
    with pytest.raises(InputError, match="would not fit into memory"):
        _ = wide.matrix_
    with pytest.raises(InputError, match="dense"):
        PublicConditioner(standardize=True).fit(X)
    with pytest.raises(InputError, match="pass all rows to fit at once"):
        PublicConditioner().fit_chunks([X])


def test_weights_come_back_in_the_units_of_the_features(X):
    for options in ({}, {"standardize": True}, {"rank": 3, "standardize": True}, {"power": 0.5}):
        fitted = PublicConditioner(**options).fit(X)
        w = np.random.default_rng(1).normal(size=8)
        coef, offset = fitted.in_original_units(w)
        np.testing.assert_allclose(fitted.transform(X) @ w, X @ coef + offset, atol=1e-9)


def test_files_come_back(X, tmp_path):
    table = pd.DataFrame(X, columns=list("abcdefgh"))
    fitted = PublicConditioner(standardize=True).fit(table)
    fitted.save(tmp_path / "C.npz", {"source": "here"})
    loaded = PublicConditioner.load(tmp_path / "C.npz")
    np.testing.assert_array_equal(loaded.transform(table), fitted.transform(table))
    assert loaded.metadata_ == {"source": "here"}
    assert loaded.get_params() == {**fitted.get_params(), "private_columns": []}
    with np.load(tmp_path / "C.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["matrix_"], fitted.matrix_)
    with pytest.raises(InputError, match="feature names"):
        loaded.transform(table.rename(columns={"a": "z"}))


def test_damaged_files_are_refused(X, tmp_path):
    fitted = PublicConditioner().fit(X)
    with pytest.raises(InputError, match=r"saved as \.npz"):
        fitted.save(tmp_path / "C.txt")
    with pytest.raises(InputError, match="not a saved conditioner"):
        PublicConditioner.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(InputError, match="not a saved conditioner"):
        PublicConditioner.load(tmp_path / "text.npz")
    fitted.save(tmp_path / "C.npz")
    with np.load(tmp_path / "C.npz", allow_pickle=False) as file:
        arrays = dict(file)
    for name, value, words in (
        ("gains_", np.full(8, np.nan), "not finite"),
        ("gains_", np.ones(7), "different sizes"),
        ("components_", np.ones((8, 8)), "not orthonormal"),
    ):
        np.savez(tmp_path / "bad.npz", **(arrays | {name: value}))
        with pytest.raises(InputError, match=words):
            PublicConditioner.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "bad.npz", document=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="not a saved conditioner"):
        PublicConditioner.load(tmp_path / "bad.npz")


def test_a_given_matrix(X):
    C = PublicConditioner(scale=None).fit(X).matrix_
    given_matrix = PublicConditioner.from_matrix(C)
    np.testing.assert_allclose(given_matrix.transform(X), X @ C, atol=1e-9)
    for broken, words in (
        (np.ones((2, 3)), "square"),
        (np.full((2, 2), np.nan), "not finite"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "not symmetric"),
        (np.diag([1.0, -1.0]), "not positive"),
    ):
        with pytest.raises(InputError, match=words):
            PublicConditioner.from_matrix(broken)


def test_labels_are_refused_but_a_pipeline_may_carry_them(X):
    y = X @ np.arange(8.0)
    with pytest.raises(LeakageError, match="must not see labels"):
        PublicConditioner().fit(X, y)
    pipeline = make_pipeline(PublicConditioner(), LinearRegression()).fit(X, y)
    assert pipeline.score(X, y) == pytest.approx(1)
    np.testing.assert_array_equal(pipeline[0].matrix_, PublicConditioner().fit(X).matrix_)


def test_private_columns_are_refused(X):
    table = pd.DataFrame(X, columns=list("abcdefgh"))
    with pytest.raises(LeakageError, match="b is marked private"):
        PublicConditioner(private_columns=("b",)).fit(table)
    with pytest.raises(LeakageError, match="3 is marked private"):
        PublicConditioner(private_columns=(3,)).fit(X)
    with pytest.raises(LeakageError, match="c is marked private"):
        PublicConditioner(private_columns=("c",)).fit_chunks([table])
    PublicConditioner(private_columns=("b",)).fit(table.drop(columns="b"))


def test_it_recognises_the_rows_that_it_saw(X):
    fitted = PublicConditioner(standardize=True).fit(X)
    order = np.random.default_rng(0).permutation(300)
    assert fitted.saw_rows_of(X)
    assert fitted.saw_rows_of(X[order])
    changed = X.copy()
    changed[0, 0] += 1e-3
    assert not fitted.saw_rows_of(changed)
    assert not fitted.saw_rows_of(X[1:])
    assert not fitted.saw_rows_of(X[:, :7])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(X, value):
    broken = X.copy()
    broken[5, 2] = value
    for table, name in ((broken, "column 2"), (pd.DataFrame(broken, columns=list("abcdefgh")), "column 'c'")):
        with pytest.raises(InputError, match=f"{name}, row 5"):
            PublicConditioner().fit(table)
        with pytest.raises(InputError, match=name):
            PublicConditioner().fit(X if table is broken else table.fillna(0).replace(np.inf, 0)).transform(
                table
            )
    with pytest.raises(InputError, match="column 2"):
        PublicConditioner().fit(scipy.sparse.csr_array(broken))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"power": 1.5}, "power is 1.5"),
        ({"gamma": -1}, "gamma is -1"),
        ({"gamma": "small"}, "gamma is 'small'"),
        ({"rank": 0}, "rank is 0"),
        ({"scale": "free"}, "scale is 'free'"),
    ],
)
def test_bad_parameters(X, options, words):
    with pytest.raises(InputError, match=words):
        PublicConditioner(**options).fit(X)


def test_no_rows_and_other_widths(X):
    with pytest.raises(InputError, match="no rows"):
        PublicConditioner().fit_chunks([])
    with pytest.raises(InputError, match="no rows"):
        PublicConditioner().fit_chunks([np.zeros((0, 3))])
    with pytest.raises(InputError, match="a chunk of rows has 3 columns"):
        PublicConditioner().fit_chunks([X, X[:, :3]])
    with pytest.raises(InputError, match="features"):
        PublicConditioner().fit(X).transform(X[:, :3])


def test_clone_forgets_what_was_learnt(X):
    fitted = PublicConditioner(gamma=0.1).fit(X)
    again = clone(fitted)
    assert again.gamma == 0.1
    assert not hasattr(again, "gains_")


def test_predicted_gain_is_the_formula(X):
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    found = predicted_gain(X)
    assert (found.lowest, found.for_labels) == (1.0, None)
    assert found.highest == pytest.approx(s[0] / s[-1])
    y = np.random.default_rng(3).normal(size=300)
    expected = np.sqrt((((U.T @ y) * s[0] / s) ** 2).sum() / ((U.T @ y) ** 2).sum())
    assert predicted_gain(X, y).for_labels == pytest.approx(expected)
    assert predicted_gain(X, U[:, 0]).for_labels == pytest.approx(1)
    assert predicted_gain(X, U[:, -1]).for_labels == pytest.approx(found.highest)
    centred = (X - X.mean(0)) / X.std(0)
    assert predicted_gain(X, y, standardize=True).for_labels == pytest.approx(
        predicted_gain(centred, y).for_labels
    )


def test_predicted_gain_refuses_nonsense(X):
    with pytest.raises(InputError, match="y has the shape"):
        predicted_gain(X, np.ones(3))
    with pytest.raises(InputError, match="NaN"):
        predicted_gain(X, np.full(300, np.nan))
    with pytest.raises(InputError, match="no part in the span"):
        predicted_gain(X, np.zeros(300))
    with pytest.raises(InputError, match="every column is constant"):
        predicted_gain(np.ones((4, 2)), standardize=True)
