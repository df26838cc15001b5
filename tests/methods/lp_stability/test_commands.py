import gzip
import json
import os
import pickle
import subprocess
import sys
import zipfile
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from assay.cli import main
from assay.errors import InputError
from assay.methods.lp_stability import BallRidge, Certificate, Estimate
from assay.methods.lp_stability.model_recipe import read_recipe


@pytest.fixture
def run(capsys):
    """Run `assay lp-stability ...` in this process; the exit code and what it printed."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["lp-stability", *map(str, arguments)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


@pytest.fixture
def refused(run):
    """Run a mistake: one line on stderr, exit code 2. Returns the line."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        return err

    return call


@pytest.fixture
def files(tmp_path, heavy_rows):
    """A data file and a model file."""
    X, y = heavy_rows(400)
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    table.insert(2, "delay", y)
    table.to_csv(tmp_path / "data.csv", index=False)
    joblib.dump(BallRidge(300.0, 1.0).fit(X, y), tmp_path / "ball.joblib")
    joblib.dump(Ridge(2.0).fit(X, y), tmp_path / "ridge.joblib")
    return tmp_path


# --- bound -------------------------------------------------------------------------------------------------


def test_bound_prints_every_bound(run):
    code, out, _ = run("bound", "--n", 1000, "--moment", "H:2=1e-6,4=9e-12", "--delta", 1e-3, "--json")
    assert code == 0
    found = json.loads(out)
    # Cantelli: sqrt(V (1 - delta) / delta) with V = n E H^2 / 2.
    assert found["chebyshev"]["radius"] == pytest.approx((5e-4 * 0.999 / 1e-3) ** 0.5)
    assert found["mcdiarmid"]["radius"] == "inf"
    assert "bound" in found["mcdiarmid"]["reason"]
    assert found["best"]["radius"] == min(float(entry["radius"]) for entry in found.values())
    _, only, _ = run(
        "bound", "--n", 1000, "--moment", "2=1e-6,4=9e-12", "--delta", 1e-3, "--bound", "rio", "--json"
    )
    assert json.loads(only) == {"rio": found["rio"]}
    _, text, _ = run("bound", "--n", 1000, "--range", 0.01, "--delta", 0.05)
    assert "mcdiarmid" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--n", 10, "--delta", 0.1), "nothing is known of the effect"),
        (("--n", 10, "--delta", 1.5, "--moment", "2=1"), "delta is 1.5"),
        (("--n", 0, "--delta", 0.1, "--moment", "2=1"), "n is 0"),
        (("--n", 10, "--delta", 0.1, "--moment", "2=1", "--p", 1), "p is 1"),
        (("--n", 10, "--delta", 0.1, "--moment", "two=1"), "write order=moment pairs"),
        (("--n", 10, "--delta", 0.1, "--moment", "2:1"), "not of the form name=number"),
        (("--n", 10, "--delta", 0.1, "--moment", "2=1,2=3"), "2 is given twice"),
        (("--n", 10, "--delta", 0.1, "--moment", "2=-1"), "-1"),
    ],
)
def test_bad_bounds(refused, arguments, message):
    assert message in refused("bound", *arguments)


# --- certify -----------------------------------------------------------------------------------------------


def test_certify_writes_a_certificate(run, files):
    out = files / "certificate.json"
    arguments = (
        "certify",
        files / "ball.joblib",
        files / "data.csv",
        "--target",
        "delay",
        "--loss",
        "absolute",
    )
    declared = ("--assume", "x_bound=1,weight_bound=2", "--label-moment", "2=2", "--out", out)
    code, text, _ = run(*arguments, "--delta", 0.05, *declared)
    assert code == 0
    assert "With probability at least 0.95 over the draw of the 320 training rows" in text
    found = Certificate.load(out)
    assert found.kind == "certificate"
    assert found.estimator == "BallRidge(alpha=300.0)"
    assert found.declared == {"x_bound": 1.0, "weight_bound": 2.0, "label_moment": {"2": 2.0}}
    table = pd.read_csv(files / "data.csv")
    found.verify(table.drop(columns="delay"), table["delay"])
    assert {"X", "y", "model file", "data file"} == set(found.inputs)
    code, text, _ = run(*arguments, *declared, "--json")
    assert json.loads(text) == json.loads(out.read_text())
    law = ("--assume", "x_bound=1", "--label-law", "t:df=5,scale=0.9", "--out", out)
    assert run(*arguments, *law)[0] == 0
    assert Certificate.load(out).declared["label_law"] == "t:df=5,scale=0.9"


def test_certify_says_when_it_can_only_estimate(run, files):
    out = files / "certificate.json"
    code, text, _ = run(
        *("certify", files / "ridge.joblib", files / "data.csv", "--target", "delay", "--loss", "absolute"),
        *("--delta", 0.05, "--assume", "x_bound=1,weight_bound=2", "--out", out),
    )
    assert code == 0
    assert text.startswith("This is an estimate, not a guarantee")
    assert Estimate.load(out).kind == "estimate"
    with pytest.raises(InputError, match="type 'estimate'"):
        Certificate.load(out)
    assert not list(files.glob(".*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--target", "price"), "has no column 'price'; it has x0, x1, delay"),
        (("--target", "delay", "--assume", "x_bound"), "not of the form name=number"),
        (("--target", "delay", "--assume", "x_bond=1"), "no constant 'x_bond'"),
        (("--target", "delay", "--assume", "fixed_design=2"), "write fixed_design=1"),
        (("--target", "delay", "--assume", "x_bound=0.1"), "x_bound=0.1 is violated by row"),
        (("--target", "delay", "--delta", "0"), "delta is 0"),
        (("--target", "delay", "--loss", "mse"), "no loss 'mse'"),
        (("--target", "delay", "--label-law", "cauchy2"), "no continuous law"),
    ],
)
def test_bad_certificates(refused, files, change, message):
    line = refused("certify", files / "ball.joblib", files / "data.csv", *change, "--out", files / "c.json")
    assert message in line
    assert not (files / "c.json").exists()


def test_bad_files(refused, files):
    arguments = ("--target", "y", "--out", files / "c.json")
    model = files / "ball.joblib"
    assert "no-such.csv: No such file" in refused("certify", model, files / "no-such.csv", *arguments)
    bad = files / "bad.csv"
    for text, message in (
        ("y,x\n1,a\n2,b\n", "column 'x' is not numeric"),
        ("y\n1\n2\n", "no column besides the target"),
        ("", "is no table"),
        ("y,x\n1,2\n3,\n", "X contains NaN in row 1"),
    ):
        bad.write_text(text)
        assert message in refused("certify", model, bad, *arguments)
    bad.write_text("y,x\n1,2\n3,4\n5,6\n")
    assert "nothing.joblib: No such file" in refused("certify", files / "nothing.joblib", bad, *arguments)
    (files / "text.joblib").write_text("hello")
    assert "is no model file" in refused("certify", files / "text.joblib", bad, *arguments)


# --- estimate ----------------------------------------------------------------------------------------------


def test_estimate_measures_swaps(run, files):
    arguments = ("estimate", files / "ridge.joblib", files / "data.csv", "--target", "delay", "--pairs", 60)
    code, out, _ = run(*arguments, "--json", "--p", "2,3")
    assert code == 0
    found = json.loads(out)
    assert found["kind"] == "estimate"
    assert found["norms_of_largest_change"]["2"] <= found["norms_of_largest_change"]["3"]
    assert found["swaps"] == 60
    _, slow, _ = run(
        *arguments, "--json", "--p", "2,3", "--shortcut", "refit", "--checkpoint", files / "part.npz"
    )
    assert json.loads(slow)["norms_of_largest_change"]["2"] == pytest.approx(
        found["norms_of_largest_change"]["2"], rel=1e-9
    )
    assert (files / "part.npz").exists()
    _, text, _ = run(*arguments, "--scheme", "loo")
    assert "This is an estimate, not a guarantee." in text


def test_bad_estimates(refused, files):
    arguments = ("estimate", files / "ridge.joblib", files / "data.csv", "--target", "delay")
    assert "--p '2;3'" in refused(*arguments, "--p", "2;3")
    assert "n_pairs is 0" in refused(*arguments, "--pairs", 0)


# --- model files -------------------------------------------------------------------------------------------

MODELS = [
    Ridge(alpha=0.3),
    make_pipeline(StandardScaler(), Ridge(2)),
    RandomForestRegressor(3, random_state=3),
    GradientBoostingRegressor(n_estimators=2),
    KNeighborsRegressor(4, weights="distance"),
    TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
    RidgeCV(alphas=(0.1, 1.0)),
    BallRidge(2.0, 3.0),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_model_file_gives_the_unfitted_estimator(model, tmp_path):
    rng = np.random.default_rng(0)
    model.fit(rng.normal(size=(30, 2)), rng.normal(size=30))
    path = tmp_path / "model"

    def pickle_with(protocol):
        path.write_bytes(pickle.dumps(model, protocol))

    writers = [partial(pickle_with, protocol) for protocol in (2, 3, 4, 5)]
    writers += [
        lambda: joblib.dump(model, path),
        lambda: joblib.dump(model, path, compress=3),
        lambda: joblib.dump(model, path, compress=("gzip", 3)),
        lambda: joblib.dump(model, path, compress=("xz", 3)),
        lambda: joblib.dump(model, path, compress=("bz2", 3)),
    ]
    for write in writers:
        write()
        found = read_recipe(path)
        assert type(found) is type(model)
        assert repr(found) == repr(model)
        # None of the fitted state is taken from the file.
        assert not [name for name in vars(found) if name.endswith("_")]


def test_numpy_parameters_are_read(tmp_path):
    model = KNeighborsRegressor(np.int64(7), p=np.float64(1.5))
    joblib.dump(model, tmp_path / "model")
    found = read_recipe(tmp_path / "model")
    assert (found.n_neighbors, found.p) == (7, 1.5)


def test_a_skops_archive_is_read(tmp_path):
    """The layout that skops writes: a schema of nodes in a zip archive."""

    def node(loader, name, module, content):
        return {"__class__": name, "__module__": module, "__loader__": loader, "content": content}

    def plain(value):
        return node("JsonNode", "str", "builtins", json.dumps(value))

    step = node(
        "ObjectNode",
        "Ridge",
        "sklearn.linear_model._ridge",
        node("DictNode", "dict", "builtins", {"alpha": plain(0.25), "coef_": {"__loader__": "NdArrayNode"}}),
    )
    pair = node("TupleNode", "tuple", "builtins", [plain("ridge"), step])
    steps = node("ListNode", "list", "builtins", [pair])
    content = node("DictNode", "dict", "builtins", {"steps": steps, "memory": plain("/somewhere")})
    schema = node("ObjectNode", "Pipeline", "sklearn.pipeline", content)
    path = tmp_path / "model.skops"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))
    assert repr(read_recipe(path)) == "Pipeline(steps=[('ridge', Ridge(alpha=0.25))])"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(InputError, match=r"no schema\.json"):
        read_recipe(path)


class Bomb:
    """Unpickling it runs a command."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_nothing_in_a_model_file_runs(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "model"
    bomb = Bomb(marker)
    as_parameter, in_state, in_array = Ridge(), Ridge(), Ridge()
    as_parameter.alpha = bomb
    in_state.extra_ = bomb
    in_array.extra_ = np.array([bomb], dtype=object)
    for model, harmless in (
        (bomb, False),
        (as_parameter, False),
        (in_state, True),
        (in_array, True),
        (make_pipeline(FunctionTransformer(os.getcwd), Ridge()), False),
    ):
        for write in (joblib.dump, lambda content, where: where.write_bytes(pickle.dumps(content))):
            write(model, path)
            if harmless:
                assert repr(read_recipe(path)) == "Ridge()"
            else:
                with pytest.raises(InputError, match=r"only scikit-learn estimators|only numbers, texts"):
                    read_recipe(path)
            assert not marker.exists()
    pickle.loads(pickle.dumps(bomb))
    assert marker.exists()


def test_a_cache_folder_is_not_taken_over(tmp_path):
    """A pipeline with a cache would unpickle what it finds there."""
    joblib.dump(Pipeline([("ridge", Ridge())], memory=str(tmp_path)), tmp_path / "model")
    assert read_recipe(tmp_path / "model").memory is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no model file"),
        (b"hello world", "is no model file"),
        (gzip.compress(b"hello", mtime=0), "is no model file"),
        (pickle.dumps({"alpha": 1}), "holds no estimator but a dict"),
        (pickle.dumps(Ridge())[:-20], "is no model file"),
        (pickle.dumps(np.float64), "holds no estimator"),
        (b"csklearn.linear_model\nNoSuch\n)\x81.", "has no sklearn.linear_model.NoSuch"),
        (b"csklearn.utils\nshuffle\n)\x81.", "which is no estimator"),
        (b"csklearn.linear_model\nRidge\n)\x81}\x8c\x05alphacposix\nsystem\nsb.", "is a posix.system"),
        (b"\x82\x01.", "is no model file"),
        (b"Vx\nP.", "is no model file"),
    ],
)
def test_other_content_is_refused(tmp_path, content, message):
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_recipe(path)


# --- weight of the imports ---------------------------------------------------------------------------------


def test_the_commands_are_light_to_import():
    script = "import sys, assay.methods.lp_stability.commands; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "sklearn", "pandas", "torch"} & set(done.stdout.split())
