"""A fitted `DeSIRegressor` as a folder: `model.json` and `train.npz`.

A local smoother predicts from its training rows, so the folder holds them: the standardised predictors, the
index and the responses. Loading executes nothing from the files: JSON, and arrays without pickle.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.files import replacing_folder
from assay.methods.desi.per_sample import PerSampleIndex
from assay.methods.desi.regressor import DeSIRegressor
from assay.methods.desi.smoother import IndexSmoother
from assay.methods.desi.spaces import space_from_spec

FORMAT = "assay.desi"
FORMAT_VERSION = 1
FITTED_NUMBERS = ("intercept_", "bandwidth_")
FITTED_VECTORS = ("direction_", "coef_", "mean_", "scale_")
CURVES = ("loss_curve_", "validation_curve_", "restart_losses_")

Model = TypeVar("Model", bound=DeSIRegressor)


def save_model(model: DeSIRegressor, folder: Path | str) -> None:
    """Write a fitted regressor to `folder`, which is replaced as a whole.

    A `random_state` that is not a number is written as null: a generator has no seed to write.

    Raises:
        InputError: the space cannot be rebuilt from its specification.
        sklearn.exceptions.NotFittedError: the regressor is not fitted.
    """
    check_is_fitted(model)
    spec = model.space.spec()
    space_from_spec(spec)
    parameters = model.get_params(deep=False)
    del parameters["space"]
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None
    names = getattr(model, "feature_names_in_", None)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "space": spec,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "n_features_in": model.n_features_in_,
        "feature_names_in": None if names is None else names.tolist(),
        "scalar_response": model._scalar_response,
        "fallbacks": model.fallbacks_,
        "fitted": {
            name: _plain(getattr(model, name))
            for name in (*FITTED_NUMBERS, *FITTED_VECTORS)
            if hasattr(model, name)
        },
    }
    arrays = {"X": model._X, "z": model.smoother_.z, "Y": model.smoother_.Y}
    arrays |= {name: getattr(model, name) for name in CURVES}
    if hasattr(model, "per_sample_"):
        arrays |= {f"network.{name}": value for name, value in model.per_sample_.state.items()}
    with replacing_folder(folder) as temporary:
        # Python writes the shortest digits that read back as the same float, so nothing is lost in JSON.
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        (temporary / "model.json").write_text(text + "\n", encoding="utf-8")
        np.savez(temporary / "train.npz", **arrays)  # pyright: ignore[reportArgumentType]


def load_model(folder: Path | str, kind: type[Model] = DeSIRegressor) -> Model:
    """Read a regressor that `save_model` wrote; its predictions are equal bit by bit.

    Raises:
        InputError: a file is missing or damaged, or another version of the format wrote it.
    """
    folder = Path(folder)
    document, arrays = _document(folder / "model.json"), _arrays(folder / "train.npz")
    try:
        model = kind(space_from_spec(document["space"]), **document["parameters"])
        model.n_features_in_ = document["n_features_in"]
        if document["feature_names_in"] is not None:
            model.feature_names_in_ = np.array(document["feature_names_in"], dtype=object)
        model._scalar_response, model._fitted = document["scalar_response"], True
        model.fallbacks_ = document["fallbacks"]
        for name, value in document["fitted"].items():
            if name not in (*FITTED_NUMBERS, *FITTED_VECTORS):
                raise InputError(f"{folder / 'model.json'} has the unknown fitted value {name!r}")
            setattr(model, name, np.array(value, float) if name in FITTED_VECTORS else float(value))
        vectors = [name for name in FITTED_VECTORS if name in document["fitted"]]
        for name in CURVES:
            setattr(model, name, arrays.pop(name))
        z, Y, model._X = arrays.pop("z"), arrays.pop("Y"), arrays.pop("X")
        used = int((model.scale_ > 0).sum())
        fits = z.ndim == 1 and len(z) == len(Y) and model._X.shape == (len(z), used)
        if not fits or any(len(getattr(model, name)) != model.n_features_in_ for name in vectors):
            raise InputError(
                f"{folder} does not fit together: index {z.shape}, responses {Y.shape}, predictors "
                f"{model._X.shape}, {model.n_features_in_} columns of which {used} vary; save the model again"
            )
        model.smoother_ = IndexSmoother(model.space, z, Y, model.bandwidth_)
        model.index_range_ = (float(z[0]), float(z[-1]))
        if arrays:
            model.per_sample_ = PerSampleIndex(
                {name.removeprefix("network."): v for name, v in arrays.items()}
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder} is damaged ({type(error).__name__}: {error}): save the model again"
        ) from error
    return model


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): pass the folder that `save` wrote"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): save the model again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a DeSI model")
    if document.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {document.get('format_version')!r}, but this version of assay reads "
            f"{FORMAT_VERSION}: load it with the version that wrote it, or fit the model again"
        )
    return document


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}): pass the folder that `save` wrote") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
