"""Saving and loading a fitted regressor: equal bit by bit, and damaged folders are told apart."""

from __future__ import annotations

import json
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from assay.errors import InputError
from assay.methods.desi.model_file import load_model, save_model
from assay.methods.desi.regressor import DeSIRegressor
from assay.methods.desi.simulate import simulate
from assay.methods.desi.spaces import Euclidean, Wasserstein1D

QUICK = {"n_restarts": 0, "max_epochs": 5, "random_state": 3}


def fitted(design: str = "spd", mode: str = "shared"):
    sample = simulate(design, 30, seed=0)  # pyright: ignore[reportArgumentType]
    return DeSIRegressor(sample.space, mode=mode, **QUICK).fit(sample.X, sample.Y), sample  # pyright: ignore[reportArgumentType]


@pytest.fixture
def folder(tmp_path):
    model, _ = fitted()
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("design", "mode"),
    [
        ("distributions", "shared"),
        ("networks", "shared"),
        ("spd", "shared"),
        ("sphere", "shared"),
        ("distributions", "deep_shared"),
        ("distributions", "per_sample"),
    ],
)
def test_predictions_survive_bit_by_bit(tmp_path, design, mode):
    model, sample = fitted(design, mode)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(sample.X), model.predict(sample.X))
    np.testing.assert_array_equal(loaded.predict_index(sample.X), model.predict_index(sample.X))
    assert loaded.get_params()["mode"] == mode
    assert loaded.space == sample.space
    for name in ("direction_", "mean_", "scale_", "loss_curve_", "validation_curve_", "restart_losses_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert loaded.bandwidth_ == model.bandwidth_
    assert loaded.fallbacks_ == model.fallbacks_
    assert loaded.index_range_ == model.index_range_
    # What is loaded can be saved again, into the same files.
    loaded.save(tmp_path / "again")
    for name in ("model.json", "train.npz"):
        assert (tmp_path / "again" / name).stat().st_size == (tmp_path / "model" / name).stat().st_size


def test_names_units_and_scalar_responses_survive(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(30, 2)), columns=["age", "income"])
    y = frame["age"].to_numpy() + rng.normal(size=30)
    model = DeSIRegressor(Euclidean(), **QUICK).fit(frame, y)
    model.save(tmp_path / "model")
    loaded = DeSIRegressor.load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == ["age", "income"]
    assert loaded.n_features_in_ == 2
    assert loaded.predict(frame).shape == (30,)
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    assert loaded.intercept_ == model.intercept_
    assert loaded.score(frame, y) == model.score(frame, y)
    # The bootstrap needs the training predictors.
    boot = [fit.bootstrap_direction(3, max_epochs=5).directions for fit in (model, loaded)]
    np.testing.assert_array_equal(*boot)


def test_space_parameters_survive(tmp_path):
    rng = np.random.default_rng(0)
    Y = np.sort(rng.uniform(size=(20, 7)), axis=1)
    space = Wasserstein1D(grid_size=7, lower=0.0, upper=1.0)
    DeSIRegressor(space, **QUICK).fit(rng.normal(size=(20, 2)), Y).save(tmp_path / "model")
    assert DeSIRegressor.load(tmp_path / "model").space == space


@pytest.mark.parametrize("mode", ["shared", "deep_shared", "per_sample"])
def test_joblib_and_pickle_work_too(tmp_path, mode):
    model, sample = fitted(mode=mode)
    joblib.dump(model, tmp_path / "model.joblib")
    for loaded in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(loaded.predict(sample.X), model.predict(sample.X))


def test_model_json_is_readable(folder):
    document = json.loads((folder / "model.json").read_text())
    assert document["space"]["name"] == "spd"
    assert document["format_version"] == 1
    assert len(document["fitted"]["direction_"]) == 4


def test_saving_replaces_the_folder(folder):
    (folder / "leftover").touch()
    fitted()[0].save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "train.npz"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        DeSIRegressor(Euclidean()).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def change(folder, **changes):
    document = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(document | changes))


def test_another_version_is_refused(folder):
    change(folder, format_version=2)
    with pytest.raises(InputError, match="format version 2, but this version of assay reads 1"):
        load_model(folder)


def test_another_format_is_refused(folder):
    change(folder, format="something")
    with pytest.raises(InputError, match="does not describe a DeSI model"):
        load_model(folder)


def test_damaged_folders_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match=r"model.json cannot be read.*folder that `save` wrote"):
        load_model(tmp_path / "nowhere")
    text = (folder / "model.json").read_text()
    (folder / "model.json").write_text(text[:-40])
    with pytest.raises(InputError, match="is not JSON"):
        load_model(folder)
    (folder / "model.json").write_text(text)
    change(folder, fitted={})
    with pytest.raises(InputError, match="is damaged"):
        load_model(folder)
    (folder / "model.json").write_text(text)
    change(folder, n_features_in=5)
    with pytest.raises(InputError, match="does not fit together"):
        load_model(folder)
    (folder / "model.json").write_text(text)
    change(folder, space={"name": "klein-bottle"})
    with pytest.raises(InputError, match="klein-bottle"):
        load_model(folder)
    (folder / "model.json").write_text(text)
    (folder / "train.npz").write_bytes(b"not an archive")
    with pytest.raises(InputError, match=r"train.npz cannot be read"):
        load_model(folder)


def test_unknown_values_and_pickled_arrays_are_refused(folder):
    document = json.loads((folder / "model.json").read_text())
    change(folder, fitted=document["fitted"] | {"predict": 1.0})
    with pytest.raises(InputError, match="unknown fitted value 'predict'"):
        load_model(folder)
    change(folder, fitted=document["fitted"])
    np.savez(folder / "train.npz", X=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        load_model(folder)
