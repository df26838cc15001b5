"""A fitted private regressor as a folder: model.json, weights.safetensors and privacy.json.

Loading runs nothing from the files. Only what is private or public is written: no label, no count of clipped
labels, no seed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.files import as_json, replacing_folder
from assay.methods.cond_dp.accounting import PrivacyReport
from assay.methods.cond_dp.tables import Encoding, file_hash
from assay.methods.cond_dp.validation import PrivateRegressor

FORMAT = "assay.cond_dp"
FORMAT_VERSION = 1
KINDS: Mapping[str, str] = {
    "CondDPRegressor": "regressors",
    "DPSGDRegressor": "regressors",
    "CondDPNetworkRegressor": "networks",
    "AdaSSPRegressor": "baselines",
    "GaussianLabelNoiseRegressor": "baselines",
    "LabelSSPRegressor": "baselines",
    "RROnBinsRegressor": "baselines",
    "WeightedLLPRegressor": "baselines",
}
# Parameters that must not be in the file (a seed undoes the noise), or need not be.
LEFT_OUT = ("random_state", "conditioner")


def save_model(model: PrivateRegressor, folder: Path | str, encoding: Encoding | None = None) -> None:
    """Write a fitted regressor to `folder`, which is replaced as a whole.

    `privacy.json` holds the guarantee and the SHA-256 of the weights that it is about.

    The conditioner is folded into the weights and not in the folder.

    Args:
        model: a fitted regressor of this package.
        folder: where to.
        encoding: how a table becomes the model's features, for `assay cond-dp predict`.

    Raises:
        InputError: a regressor of this kind cannot be saved.
        sklearn.exceptions.NotFittedError: the regressor is not fitted.
    """
    check_is_fitted(model)
    kind = type(model).__name__
    if kind not in KINDS:
        raise InputError(f"a {kind} cannot be saved: choose one of {', '.join(KINDS)}")
    names = getattr(model, "feature_names_in_", None)
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name not in LEFT_OUT}
    # Pairs, because the keys of a JSON object cannot be numbers.
    if "private_columns" in parameters:
        parameters["private_columns"] = list((parameters["private_columns"] or {}).items())
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "parameters": as_json(parameters),
        "n_features_in": model.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "encoding": None if encoding is None else encoding.to_json(),
    }
    with replacing_folder(folder) as temporary:
        save_file(_weights(model), temporary / "weights.safetensors")
        privacy = model.privacy_.to_json() | {"weights_sha256": file_hash(temporary / "weights.safetensors")}
        for name, value in (("model.json", document), ("privacy.json", privacy)):
            text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
            (temporary / name).write_text(text + "\n", encoding="utf-8")


def load_model(folder: Path | str) -> tuple[PrivateRegressor, Encoding | None]:
    """Read a regressor that `save_model` wrote, and the encoding of its features.

    Raises:
        InputError: a file is missing or damaged, or the weights are not those that the privacy statement is
            about.
    """
    folder = Path(folder)
    document, report = _document(folder / "model.json"), read_privacy(folder)
    if document.get("format") != FORMAT:
        raise InputError(f"{folder / 'model.json'} does not describe a private regressor")
    if document.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{folder} has format version {document.get('format_version')!r}, but this version of assay "
            "reads "
            f"{FORMAT_VERSION}: load it with the version that wrote it, or fit the model again"
        )
    kind = str(document.get("kind"))
    if kind not in KINDS:
        raise InputError(f"{folder / 'model.json'} has the unknown kind {kind!r}")
    cls = getattr(importlib.import_module(f"assay.methods.cond_dp.{KINDS[kind]}"), kind)
    try:
        parameters = {name: _tuples(value) for name, value in document["parameters"].items()}
        parameters["epsilon"] = float(parameters["epsilon"])
        if "private_columns" in parameters:
            pairs = parameters["private_columns"]
            parameters["private_columns"] = {name: tuple(ends) for name, ends in pairs} or None
        model = cls(**parameters)
        model.n_features_in_ = int(document["n_features_in"])
        if document["feature_names_in"] is not None:
            model.feature_names_in_ = np.array(document["feature_names_in"], dtype=object)
        _restore(model, load_file(folder / "weights.safetensors"))
        model.privacy_ = report
        encoding = None if document["encoding"] is None else Encoding.from_json(document["encoding"])
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"{folder} is damaged ({type(error).__name__}: {error}): save the model again"
        ) from error
    return model, encoding


def read_privacy(folder: Path | str) -> PrivacyReport:
    """The guarantee of a saved model, if it is about the weights that lie beside it.

    Raises:
        InputError: a file is missing or damaged, or the weights have changed.
    """
    folder = Path(folder)
    document = _document(folder / "privacy.json")
    expected = document.pop("weights_sha256", None)
    weights = folder / "weights.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights} does not exist: pass the folder that `assay cond-dp fit` wrote")
    if file_hash(weights) != expected:
        raise InputError(
            f"{folder}: privacy.json is about other weights than weights.safetensors: its guarantee does "
            "not hold for "
            "them; save the model again"
        )
    return PrivacyReport.from_json(document)


def _weights(model: Any) -> dict[str, np.ndarray]:
    if hasattr(model, "module_"):
        return {name: value.numpy() for name, value in model.module_.state_dict().items()}
    return {"coef": np.ascontiguousarray(model.coef_), "intercept": np.array([model.intercept_])}


def _restore(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    if "coef" in weights:
        model.coef_, model.intercept_ = weights["coef"], float(weights["intercept"][0])
        if model.coef_.shape != (model.n_features_in_,):
            raise InputError(
                f"{len(model.coef_)} weights for {model.n_features_in_} features: save the model again"
            )
        return
    model.restore_network(weights)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): pass the folder that `assay cond-dp fit` wrote"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): save the model again") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} does not describe a model")
    return document


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
