"""`assay cond-dp fit`, `condition`, `account` and `predict` on files, as a user types them."""

import json

import numpy as np
import pandas as pd
import pytest

from assay.cli import main
from assay.errors import InputError
from assay.methods.cond_dp import PublicConditioner, load_model
from assay.methods.cond_dp import tables as tables_module
from assay.methods.cond_dp.tables import Encoding, learn_encoding, read_chunks, read_table, write_table


@pytest.fixture
def assay(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own; returns what it printed, or its one line of complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["cond-dp", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        if code:
            assert err.count("\n") == 1, err
        return err if code else out

    return run


@pytest.fixture
def data(tmp_path):
    """Labels from two numbers, a colour and an age, in data.csv; the halves of the rows in other files."""
    rng = np.random.default_rng(0)
    n = 600
    table = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "b": 3 + 0.1 * rng.normal(size=n),
            "c": rng.choice(["red", "green", "blue"], size=n),
            "age": rng.integers(18, 90, size=n),
        }
    )
    table["y"] = np.clip(5 + table.a + (table.c == "red") + 0.02 * table.age, 0, 10).round(3)
    table.to_csv(tmp_path / "data.csv", index=False)
    table[:300].to_parquet(tmp_path / "public.parquet")
    table[300:].to_csv(tmp_path / "private.csv", index=False)
    return table


FIT = (
    "fit",
    "data.csv",
    "--target",
    "y",
    "--public",
    "a,b,c",
    "--epsilon",
    1,
    "--y-range",
    "0,10",
    "-o",
    "model",
)


def test_fit_prints_the_statement_and_predict_uses_the_model(assay, data, tmp_path):
    printed = assay(*FIT)
    assert "(1, 1e-06)-DP with respect to replacing ONE LABEL; features of the 600 training rows" in printed
    assert "For comparison, add_remove: epsilon 0.47" in printed
    privacy = json.loads((tmp_path / "model" / "privacy.json").read_text())
    assert privacy["statement"] in printed
    assert privacy["epsilon"]["replace_label"] == pytest.approx(1)
    assert len(privacy["weights_sha256"]) == 64
    assert privacy["statement"] in assay("account", "model")

    assay("predict", "model", "private.csv", "-o", "out.csv")
    assay("predict", "model", "public.parquet", "-o", "out.parquet")
    model, encoding = load_model(tmp_path / "model")
    np.testing.assert_allclose(pd.read_csv("out.csv").prediction, model.predict(encoding.encode(data[300:])))
    np.testing.assert_allclose(
        pd.read_parquet("out.parquet").prediction, model.predict(encoding.encode(data[:300]))
    )


def test_the_default_folder_and_one_that_holds_something_else(assay, data, tmp_path):
    assert "Saved to model" in assay(*FIT[:-2])
    assert "Saved to model" in assay(*FIT[:-2])
    (tmp_path / "thesis").mkdir()
    assert "thesis exists and is not a saved model" in assay(*FIT[:-1], "thesis", code=2)
    assert (tmp_path / "thesis").is_dir()


def test_nothing_of_the_labels_is_printed_or_written_beyond_the_model(assay, data, tmp_path):
    """Labels that are clipped to the same ones give the same model and the same output."""
    shown = []
    for name, high in (("one", 1e6), ("two", 11.0)):
        data.assign(y=np.where(data.y > 6, high, 0.0)).to_csv("data.csv", index=False)
        printed = assay(*FIT[:-1], "folder", "--seed", 3)
        files = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
        (tmp_path / "folder").rename(tmp_path / name)
        shown.append((printed, files))
    assert shown[0] == shown[1]
    assert "labels were outside" not in shown[0][0]
    assert b'"seed"' not in shown[0][1]["model.json"]
    assert "random_state" not in shown[0][1]["model.json"].decode()


def test_the_count_of_clipped_labels_is_shown_on_request_only(assay, data):
    printed = assay(*FIT[:9], "2,6", "-o", "model", "--show-clipped")
    assert f"NOT PRIVATE, do not publish: {((data.y < 2) | (data.y > 6)).sum()} labels" in printed


@pytest.mark.parametrize("model", ["mlp", "fm"])
def test_networks(assay, data, model):
    options = ("--model", model, "--hidden", "8", "--factors", 3, "--epochs", 4, "--switch-epoch", 2)
    printed = assay(*FIT, *options)
    assert "4 steps of DP-Adam" in printed
    assay("predict", "model", "data.csv", "-o", "out.csv")
    assert len(pd.read_csv("out.csv")) == 600


def test_a_single_release(assay, data):
    assay("condition", "public.parquet", "--public", "a,b,c", "-o", "C.npz")
    printed = assay(*FIT, "--model", "label-ssp")
    assert "(1, 1e-06)-DP with respect to replacing ONE LABEL" in printed
    assay("predict", "model", "data.csv", "-o", "out.csv")
    errors = pd.read_csv("out.csv").prediction - data.y
    assert (errors**2).mean() < data.y.var()
    for option, words in (
        (("--lr", 0.1), "takes no steps"),
        (("--tuning-budget", 0.2), "no learning rate to tune"),
        (("--adjacency", "semi_sensitive"), "is for --adjacency replace_label"),
        (("--conditioner", "C.npz"), "leave out --conditioner"),
    ):
        assert words in assay(*FIT, "--model", "label-ssp", *option, code=2)


def test_private_features_and_counted_tuning(assay, data):
    printed = assay(*FIT, "--adjacency", "semi_sensitive", "--private", "age:18:90", "--tuning-budget", 0.25)
    assert "replacing the private features and the label of ONE ROW" in printed
    assert "the ranges of the private features" in printed
    assert "6 candidates used private data and is counted: it had 25%" in printed


def test_negative_ranges(assay, data):
    assay(*FIT[:9], "-1.5,10", "-o", "model")
    assay(*FIT[:8], "--y-range=-1,10", "-o", "model")


def test_whole_rows_with_a_conditioner_from_public_ones(assay, data, tmp_path, monkeypatch):
    monkeypatch.setattr(tables_module, "CHUNK_ROWS", 64)
    printed = assay("condition", "public.parquet", "--public", "a,b,c", "-o", "C.npz")
    assert "300 rows, 5 features" in printed
    assert "rank 4 of 5" in printed
    fitted = PublicConditioner.load(tmp_path / "C.npz")
    whole = learn_encoding([data[:300]], ["a", "b", "c"]).encode(data[:300])
    with pytest.warns(UserWarning, match="rank 4 of 5"):
        expected = PublicConditioner(standardize=True).fit(whole)
    np.testing.assert_allclose(fitted.matrix_, expected.matrix_, atol=1e-8)
    row = ("--adjacency", "add_remove", "--batch", 100)
    arguments = ("fit", "private.csv", *FIT[2:], *row)
    assert "protects whole rows" in assay(*arguments, code=2)
    printed = assay(*arguments, "--conditioner", "C.npz")
    assert "adding or removing ONE ROW; the conditioner, computed from other rows" in printed
    assert f"from public.parquet, sha256 {fitted.metadata_['sha256']}, declared public" in printed
    assay("condition", "private.csv", "--public", "a,b,c", "-o", "own.npz")
    assert "was fitted on the rows that" in assay(*arguments, "--conditioner", "own.npz", code=2)


def test_account(assay):
    printed = assay("account", "--steps", 64, "--sigma", 33.8)
    assert "2.1227" in printed
    assert "0.9999" in printed
    printed = assay("account", "--steps", 64, "--epsilon", 1)
    assert "67.59" in printed
    assert "33.79" in printed
    assert assay("account", "--steps", 20, "--sigma", 2.129, "--sample-rate", 0.1, "--quiet") == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--epsilon": 0}, "epsilon is 0.0"),
        ({"--delta": 2}, "delta is 2.0"),
        ({"--y-range": "10,0"}, "the smaller one first"),
        ({"--y-range": "ten"}, "pass two numbers"),
        ({"--y-range": None}, "--y-range"),
        ({"--public": "a,b,zip"}, "has no column zip"),
        ({"--public": "a,y"}, "y is the target"),
        ({"--public": "a,a"}, "named twice"),
        ({"--target": "z"}, "has no column z"),
        ({"--private": "age:18:90"}, "--private is for --adjacency semi_sensitive"),
        ({"--private": "age", "--adjacency": "semi_sensitive"}, "declare its range, e.g. age:0:100"),
        ({"--private": "a:0:1", "--adjacency": "semi_sensitive"}, "cannot be public and private"),
        ({"--categorical": "age"}, "age: not among the public columns"),
        ({"--levels": "c"}, "pass a column and its levels"),
        ({"--hidden": "wide", "--model": "mlp"}, "--hidden is 'wide'"),
        ({"--switch-epoch": 3}, "--switch-epoch is for --model mlp and fm"),
        ({"--tuning-budget": 2}, "tuning budget is 2.0"),
        ({"--gamma": 0}, "gamma is 0"),
        ({"--power": 2}, "power is 2"),
        ({"--conditioner": "none.npz"}, "not a saved conditioner"),
    ],
)
def test_mistakes_end_in_one_line(assay, data, changes, words):
    options = {FIT[i]: FIT[i + 1] for i in range(2, len(FIT), 2)} | changes
    arguments = [part for name, value in options.items() if value is not None for part in (name, value)]
    assert words in assay("fit", "data.csv", *arguments, code=2)


def test_mistakes_with_files(assay, data, tmp_path):
    assert "none.csv does not exist" in assay("fit", "none.csv", *FIT[2:], code=2)
    (tmp_path / "data.txt").write_text("a")
    assert "must end in .csv or .parquet" in assay("fit", "data.txt", *FIT[2:], code=2)
    (tmp_path / "bad.parquet").write_text("a")
    assert "is not a Parquet file" in assay("fit", "bad.parquet", *FIT[2:], code=2)
    data.assign(b=data.b.where(data.b.index != 4)).to_csv("gap.csv", index=False)
    assert "column 'b' has no finite number in data row 5" in assay("fit", "gap.csv", *FIT[2:], code=2)
    data.assign(c=data.c.where(data.c.index != 4)).to_csv("gap.csv", index=False)
    assert "column 'c' has no value in data row 5" in assay("fit", "gap.csv", *FIT[2:], code=2)
    assert "must end in .npz" in assay("condition", "data.csv", "--public", "a", "-o", "C.txt", code=2)
    assay(*FIT)
    assert "must end in .csv or .parquet" in assay("predict", "model", "data.csv", "-o", "out.txt", code=2)
    (tmp_path / "model" / "privacy.json").write_text("{}")
    assert "its guarantee does not hold" in assay("predict", "model", "data.csv", "-o", "out.csv", code=2)
    assert "--steps with --sigma" in assay("account", code=2)
    assert "--steps with --sigma" in assay("account", "--steps", 3, "--sigma", 1, "--epsilon", 1, code=2)
    assert "either a saved model" in assay("account", "model", "--steps", 3, code=2)


def test_encodings(tmp_path):
    table = pd.DataFrame({"n": [1, 2, 3], "t": ["x", "y", "x"], "flag": [True, False, True], "m": [7, 8, 7]})
    encoding = learn_encoding([table[:2], table[2:]], ["n", "t", "flag", "m"], categories=["m"])
    assert encoding.features == ["n", "t=x", "t=y", "flag", "m=7", "m=8"]
    encoded = encoding.encode(table)
    np.testing.assert_array_equal(encoded["t=x"], [1, 0, 1])
    np.testing.assert_array_equal(encoded["flag"], [1, 0, 1])
    np.testing.assert_array_equal(encoded["m=8"], [0, 1, 0])
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding
    # A level that was not there becomes zeros.
    np.testing.assert_array_equal(encoding.encode(table.assign(t="new"))[["t=x", "t=y"]], 0)
    declared = learn_encoding([table], ["t"], declared={"t": ["z", "x"]})
    assert declared.features == ["t=z", "t=x"]
    with pytest.raises(InputError, match="more than 2000 levels"):
        learn_encoding([pd.DataFrame({"t": [f"v{i}" for i in range(3000)]})], ["t"])


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_tables_in_chunks(tmp_path, monkeypatch, name):
    table = pd.DataFrame({"a": np.arange(10.0), "b": list("abcdefghij")})
    write_table(tmp_path / name, table)
    monkeypatch.setattr(tables_module, "CHUNK_ROWS", 3)
    assert [len(chunk) for chunk in read_chunks(tmp_path / name, ["a"])] == [3, 3, 3, 1]
    pd.testing.assert_frame_equal(read_table(tmp_path / name, ["a", "b"]), table)
    with pytest.raises(InputError, match="has no column z; it has a, b"):
        read_table(tmp_path / name, ["a", "z"])


def test_the_commands_import_without_torch():
    import subprocess
    import sys

    code = (
        "import sys, assay.methods.cond_dp, assay.methods.cond_dp.commands; "
        "print([m for m in ('torch', 'numpy', 'pandas', 'sklearn', 'opacus') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
