"""Spaces by name, for the command line and for saved models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from assay.errors import InputError
from assay.methods.desi.spaces.composition import Composition
from assay.methods.desi.spaces.euclidean import Euclidean
from assay.methods.desi.spaces.laplacian import GraphLaplacian
from assay.methods.desi.spaces.space import MetricSpace
from assay.methods.desi.spaces.spd import SPD
from assay.methods.desi.spaces.sphere import Sphere
from assay.methods.desi.spaces.wasserstein import Wasserstein1D

SPACES: dict[str, type] = {
    space.name: space for space in (Wasserstein1D, GraphLaplacian, SPD, Sphere, Composition, Euclidean)
}


def space_from_spec(spec: Mapping[str, Any]) -> MetricSpace:
    """The space that `spec` describes, for example `{"name": "spd", "metric": "affine-invariant"}`.

    Args:
        spec: `name`, a key of `SPACES`, and any parameters of that class; the others keep their defaults.

    Raises:
        InputError: an unknown name or parameter, or a value that the space refuses.
    """
    parameters = dict(spec)
    name = parameters.pop("name", None)
    if name == "geomstats":
        raise InputError(
            f"a geomstats space ({parameters.get('class')}) cannot be rebuilt from its description; "
            "pass from_geomstats(...) yourself"
        )
    if not isinstance(name, str) or name not in SPACES:
        raise InputError(f"space {name!r} is unknown; choose one of {', '.join(SPACES)}")
    space = SPACES[name]
    known = [field.name for field in fields(space)]
    for parameter in parameters:
        if parameter not in known:
            choice = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise InputError(f"space {name!r} has no parameter {parameter!r}; {choice}")
    try:
        return space(**parameters)
    except TypeError as error:
        raise InputError(f"space {name!r} refuses {parameters}: {error}") from None
