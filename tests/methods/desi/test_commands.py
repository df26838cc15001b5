"""`assay desi fit`, `predict` and `explain` on files, as a user types them."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from assay.cli import main
from assay.methods.desi import DeSIRegressor

FAST = ("--restarts", 0, "--quiet")


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code:
            assert err.count("\n") == 1, err
        return err if code else out

    return run


@pytest.fixture
def data(tmp_path):
    """Distributions N(s, 1) with s = (a - b) / sqrt(2), as quantiles; named.csv also has a column of text."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(60, 3))
    s = (X[:, 0] - X[:, 1]) / np.sqrt(2)
    Y = s[:, None] + 0.2 * rng.normal(size=(60, 1)) + ndtri(np.arange(1, 20) / 20)
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.to_csv(tmp_path / "X.csv", index=False)
    table.assign(name="someone").to_csv(tmp_path / "named.csv", index=False)
    np.savez(tmp_path / "Y.npz", Y=Y)
    pd.DataFrame(Y).to_csv(tmp_path / "Y.csv", index=False)
    return tmp_path


def fit(*more, response="Y.npz", space="wasserstein", out="model"):
    return ("desi", "fit", "X.csv", "--response", response, "--space", space, "-o", out, *more)


def test_fit_predict_explain(assay, data):
    printed = assay(*fit("--restarts", 0))
    assert "60 rows, 3 predictors" in printed
    model = DeSIRegressor.load(data / "model")
    assert abs(model.direction_ @ np.array([1, -1, 0]) / np.sqrt(2)) > 0.98

    assay("desi", "predict", "model", "named.csv", "-o", "predictions.npz")
    expected = model.predict(pd.read_csv(data / "X.csv"))
    with np.load(data / "predictions.npz") as arrays:
        np.testing.assert_array_equal(arrays["Y"], expected)
        assert arrays["index"].shape == (60,)
        assert not arrays["extrapolated"].any()
    assay("desi", "predict", "model", "X.csv", "-o", "predictions.csv")
    table = pd.read_csv(data / "predictions.csv")
    np.testing.assert_allclose(table.filter(regex="^y").to_numpy(), expected)

    printed = assay("desi", "explain", "model", "--bootstrap", 5, "-o", "explanation")
    assert "95% interval" in printed
    assert "cosine stability" in printed
    rows = pd.read_csv(data / "explanation" / "direction.csv")
    assert set(rows["predictor"][:2]) == {"a", "b"}
    assert (rows["low"] <= rows["high"]).all()
    for name in ("direction.png", "along-index.png"):
        assert (data / "explanation" / name).read_bytes().startswith(b"\x89PNG")


def test_extrapolation_is_said(assay, data):
    assay(*fit(*FAST))
    pd.DataFrame({"a": [9.0], "b": [-9.0], "c": [0.0]}).to_csv(data / "far.csv", index=False)
    assert "1 rows have an index outside" in assay("desi", "predict", "model", "far.csv", "-o", "far.npz")


def test_csv_outcomes_and_npz_predictors_give_the_same_model(assay, data):
    np.savez(data / "X.npz", X=pd.read_csv(data / "X.csv").to_numpy())
    assert assay(*fit(*FAST, response="Y.csv", out="one")) == ""
    common = ("--response", "Y.npz", "--space", "wasserstein", "-o", "two", *FAST)
    assay("desi", "fit", "X.npz", *common)
    models = [DeSIRegressor.load(data / name) for name in ("one", "two")]
    np.testing.assert_allclose(models[0].direction_, models[1].direction_, atol=1e-8)


def test_raw_samples(assay, data):
    rng = np.random.default_rng(1)
    X = pd.read_csv(data / "X.csv")
    rows = [(i + 1, 2 * a + value) for i, a in enumerate(X["a"]) for value in rng.normal(size=15)]
    pd.DataFrame(rows, columns=["row", "value"]).to_csv(data / "samples.csv", index=False)
    assay(*fit("--samples", *FAST, response="samples.csv"))
    assert DeSIRegressor.load(data / "model").direction_[0] > 0.9


def test_comparison_shows_models_without_an_index(assay, data):
    printed = assay(*fit("--restarts", 0, "--compare", 2))
    for name in ("DeSI", "global Fréchet regression", "Fréchet forest"):
        assert name in printed


@pytest.mark.parametrize(
    ("space", "shape"),
    [("spd", (2, 2)), ("laplacian", (2, 2)), ("composition", (3,)), ("sphere", (3,)), ("euclidean", (2,))],
)
def test_every_space_is_fitted_and_drawn(assay, data, space, shape):
    s = pd.read_csv(data / "X.csv")["a"].to_numpy()
    one, two = np.ones_like(s), np.exp(s)
    Y = {
        "spd": np.array([[two, 0.2 * one], [0.2 * one, one]]),
        "laplacian": np.array([[two, -two], [-two, two]]),
        "composition": np.array([one, two, one]) / (2 * one + two),
        "sphere": np.sqrt(np.array([one, two, one]) / (2 * one + two)),
        "euclidean": np.array([s, two]),
    }[space]
    Y = np.moveaxis(Y, -1, 0)
    pd.DataFrame(Y.reshape(60, -1)).to_csv(data / "Y2.csv", index=False)
    assay(*fit(*FAST, response="Y2.csv", space=space))
    assay("desi", "predict", "model", "X.csv", "-o", "p.npz")
    with np.load(data / "p.npz") as arrays:
        assert arrays["Y"].shape == (60, *shape)
    assay("desi", "explain", "model", "--bootstrap", 0, "-o", "e")
    assert (data / "e" / "along-index.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"response": "no.npz"}, "no.npz does not exist"),
        ({"response": "short.csv"}, "X has 60 rows but y has 10"),
        ({"response": "pickled.npz"}, "is not an NPZ file of numbers"),
        ({"more": ("--predictors", "a", "z")}, "has no column z; it has a, b, c"),
        ({"more": ("--bandwidth", "-1")}, "bandwidth is -1.0"),
        ({"more": ("--metric", "nonsense")}, "metric"),
        ({"more": ("--compare", "1")}, "--compare must be from 2 to 30 folds"),
        ({"more": ("--samples",), "space": "euclidean", "response": "Y.csv"}, "is for --space wasserstein"),
        ({"space": "spd", "response": "short.csv"}, "19 columns are not the entries of a square matrix"),
    ],
)
def test_mistakes_of_fit(assay, data, changes, expected):
    pd.read_csv(data / "Y.csv").head(10).to_csv(data / "short.csv", index=False)
    np.savez(data / "pickled.npz", Y=np.array([{"a": 1}], dtype=object))
    arguments = fit(*FAST, *changes.pop("more", ()), **changes)
    assert expected in assay(*arguments, code=2)
    assert not (data / "model").exists()


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("no.csv", "no.csv does not exist"),
        ("named.csv", "column 'name' has someone in data row 1"),
        ("gap.csv", "column 'b' has nan in data row 3"),
    ],
)
def test_mistakes_in_predictors(assay, data, file, expected):
    table = pd.read_csv(data / "X.csv")
    table.loc[2, "b"] = np.nan
    table.to_csv(data / "gap.csv", index=False)
    common = ("--response", "Y.npz", "--space", "wasserstein", "-o", "model")
    assert expected in assay("desi", "fit", file, *common, code=2)


def test_mistakes_of_predict_and_explain(assay, data):
    assert "nowhere" in assay("desi", "predict", "nowhere", "X.csv", "-o", "p.npz", code=2)
    assay(*fit(*FAST))
    assert "must end in .npz or .csv" in assay("desi", "predict", "model", "X.csv", "-o", "p.txt", code=2)
    pd.read_csv(data / "X.csv").drop(columns="b").to_csv(data / "fewer.csv", index=False)
    assert "has no column b" in assay("desi", "predict", "model", "fewer.csv", "-o", "p.npz", code=2)
    (data / "model" / "model.json").write_text("{}")
    assert "model.json" in assay("desi", "explain", "model", code=2)
