"""A conditioner as an .npz file: arrays without pickle, and JSON."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from assay.errors import InputError
from assay.files import replacing
from assay.methods.cond_dp.conditioner import WIDE, PublicConditioner

FORMAT = "assay.cond_dp.conditioner"
FORMAT_VERSION = 1
ARRAYS = ("mean_", "scale_", "components_", "gains_", "spectrum_", "column_sums_", "column_squares_")
WHOLE = ("n_rows_", "n_features_in_", "rank_")
NUMBERS = ("tail_gain_", "ratio_", "effective_rank_", *WHOLE)

Conditioner = TypeVar("Conditioner", bound=PublicConditioner)


def save_conditioner(conditioner: PublicConditioner, path: Path, metadata: Mapping[str, Any]) -> None:
    """Write the fitted conditioner to an .npz file of numbers and JSON, with the matrix C in it.

    Args:
        conditioner: a fitted one.
        path: where to; the name ends in .npz.
        metadata: JSON values to keep with it, e.g. where the rows came from; `load_conditioner` sets
            `metadata_`.

    Raises:
        InputError: the name does not end in .npz.
    """
    check_is_fitted(conditioner, "gains_")
    if path.suffix != ".npz":
        raise InputError(f"a conditioner is saved as .npz, not {path.name}")
    parameters = conditioner.get_params()
    parameters["private_columns"] = list(parameters["private_columns"])
    names = getattr(conditioner, "feature_names_in_", None)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "parameters": parameters,
        "feature_names_in": None if names is None else [str(name) for name in names],
        "notes": list(conditioner.notes_),
        "metadata": dict(metadata),
    }
    arrays = {name: getattr(conditioner, name) for name in (*ARRAYS, *NUMBERS)}
    if conditioner.n_features_in_ <= WIDE:
        arrays["matrix_"] = conditioner.matrix_
    with replacing(path) as temporary:
        np.savez(temporary, document=np.array(json.dumps(document)), **arrays)  # pyright: ignore[reportArgumentType]


def load_conditioner(path: Path, kind: type[Conditioner] = PublicConditioner) -> Conditioner:
    """Read what `save_conditioner` wrote.

    Raises:
        InputError: the file is missing, damaged, or not a conditioner.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        document = json.loads(str(arrays.pop("document")))
        if document["format"] != FORMAT or document["format_version"] != FORMAT_VERSION:
            raise InputError(f"{path} is not a conditioner of this version of assay: fit it again")
        conditioner = kind(**document["parameters"])
        for name in ARRAYS:
            setattr(conditioner, name, arrays[name])
        for name in NUMBERS:
            value = arrays[name].item()
            setattr(conditioner, name, int(value) if name in WHOLE else float(value))
        conditioner.notes_, conditioner.metadata_ = tuple(document["notes"]), dict(document["metadata"])
        if document["feature_names_in"] is not None:
            conditioner.feature_names_in_ = np.array(document["feature_names_in"], dtype=object)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is not a saved conditioner ({type(error).__name__}: {error}): write one with "
            "`assay cond-dp condition`"
        ) from error
    _check_arrays(conditioner, path)
    return conditioner


def _check_arrays(conditioner: PublicConditioner, path: Path) -> None:
    d, r = conditioner.n_features_in_, len(conditioner.gains_)
    shapes = [
        conditioner.mean_.shape == (d,),
        conditioner.scale_.shape == (d,),
        conditioner.components_.shape == (r, d),
    ]
    if not (all(shapes) and conditioner.gains_.shape == (r,)):
        raise InputError(f"{path} does not fit together: its arrays have different sizes; fit it again")
    numbers = (
        conditioner.mean_,
        conditioner.scale_,
        conditioner.components_,
        conditioner.gains_,
        conditioner.tail_gain_,
        conditioner.ratio_,
    )
    if not all(np.isfinite(value).all() for value in numbers):
        raise InputError(f"{path} has entries that are not finite numbers: fit it again")
    if np.abs(conditioner.components_ @ conditioner.components_.T - np.eye(r)).max(initial=0.0) > 1e-6:
        raise InputError(f"{path} has directions that are not orthonormal: fit it again")
