"""Reading from a model file which estimator it holds, without running anything that the file says.

A pickle is a program. This reader interprets it with inert stand-ins: no global that the file names is
imported or called, so the file can build nothing but descriptions of objects. Of these only the constructor
parameters of scikit-learn estimators are used, to make new, unfitted ones. The fitted state is ignored; a
certificate fits again anyway.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import inspect
import io
import json
import lzma
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from assay.errors import InputError

# The one estimator outside scikit-learn that is rebuilt.
OWN = {("assay.methods.lp_stability.ball_ridge", "BallRidge")}
# Parameters that make an estimator read files when it fits; they never change what is learnt.
DROPPED = {"memory": None}
DECOMPRESSORS = (
    (b"\x1f\x8b", gzip.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
    (b"\x5d\x00", lzma.decompress),
    (b"\x78", zlib.decompress),
)


class Inert:
    """What stands for an object of a file: the name of its class, and what the file would have built it
    with."""

    def __init__(self, module: str, name: str, arguments: tuple = ()) -> None:
        self.module, self.name, self.arguments, self.state = module, name, arguments, None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    # A file may fill an object like a list or a dictionary; that content is never a parameter.
    def append(self, item: Any) -> None:
        """Ignore an item."""

    def extend(self, items: Any) -> None:
        """Ignore items."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class InertClass:
    """What stands for a class or function that a file names."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


# The interpreter that is written in Python: only there can what an instruction does be replaced.
PythonUnpickler: Any = pickle._Unpickler  # pyright: ignore[reportAttributeAccessIssue]


class InertUnpickler(PythonUnpickler):
    """An interpreter of pickles in which every global is an `InertClass`."""

    dispatch: ClassVar[dict[int, Any]] = dict(PythonUnpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._stream = file

    def find_class(self, module: str, name: str) -> InertClass:
        return InertClass(module, name)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"extension code {code}")

    def persistent_load(self, pid: Any) -> None:
        raise pickle.UnpicklingError("persistent id")

    def _instantiate(self, klass: Any, arguments: Any) -> None:
        self.append(_described(klass, tuple(arguments)))

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _described(self.stack[-1], tuple(arguments))

    def load_newobj(self) -> None:
        arguments = self.stack.pop()
        self.append(_described(self.stack.pop(), tuple(arguments)))

    def load_newobj_ex(self) -> None:
        self.stack.pop()
        arguments = self.stack.pop()
        self.append(_described(self.stack.pop(), tuple(arguments)))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert):
            target.state = state
            if target.name == "NumpyArrayWrapper":
                self._skip_array(state)

    def _skip_array(self, wrapper: Any) -> None:
        """joblib writes an array's bytes behind its description."""
        kind = np.dtype(str(wrapper["dtype"].arguments[0]))
        if kind.hasobject:
            InertUnpickler(self._stream).load()
            return
        if wrapper.get("numpy_array_alignment_bytes") is not None:
            self._stream.seek(self._stream.read(1)[0], io.SEEK_CUR)
        size = int(np.prod([int(length) for length in wrapper["shape"]], dtype=object)) * kind.itemsize
        self._stream.seek(size, io.SEEK_CUR)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build


def read_recipe(path: Path | str) -> Any:
    """A new, unfitted estimator with the constructor parameters of the one in a model file.

    Nothing in the file can run code: it is read as data, and only scikit-learn estimators (and `BallRidge`)
    with parameters that are numbers, texts, collections of these, or such estimators are made from it. It
    reads what `joblib.dump`, `pickle.dump` (protocols 2 to 5) and `skops.io.dump` write.

    Raises:
        InputError: the file is none of these, or holds something else; the message names it.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            described = _from_skops(content)
        else:
            for magic, decompress in DECOMPRESSORS:
                if content.startswith(magic):
                    content = decompress(content)
                    break
            described = InertUnpickler(io.BytesIO(content)).load()
    except InputError:
        raise
    except Exception as error:
        # A damaged or hostile file can fail anywhere in the interpreter; each failure means that it is no
        # model.
        raise InputError(
            f"{path} is no model file of joblib, pickle or skops ({type(error).__name__}: {error})"
        ) from None
    if not isinstance(described, Inert):
        raise InputError(f"{path} holds no estimator but a {type(described).__name__}")
    return _estimator(described, str(path))


def _described(klass: Any, arguments: tuple) -> Any:
    if not isinstance(klass, InertClass):
        raise pickle.UnpicklingError("an object that is no class was called")
    return Inert(klass.module, klass.name, arguments)


def _estimator(described: Inert, where: str) -> Any:
    from sklearn.base import BaseEstimator

    name = f"{described.module}.{described.name}"
    trusted = described.module.partition(".")[0] == "sklearn" or (described.module, described.name) in OWN
    if not trusted:
        raise InputError(
            f"{where} holds a {name}: only scikit-learn estimators are rebuilt from a file, because anything "
            "else could run code; use assay.methods.lp_stability.certify in Python"
        )
    try:
        kind = getattr(importlib.import_module(described.module), described.name)
    except (ImportError, AttributeError, ValueError):
        raise InputError(f"{where}: this version of scikit-learn has no {name}") from None
    if not (inspect.isclass(kind) and issubclass(kind, BaseEstimator)):
        raise InputError(f"{where} holds a {name}, which is no estimator")
    state = described.state if isinstance(described.state, dict) else {}
    parameters = {}
    for key in kind._get_param_names():
        if key in DROPPED:
            parameters[key] = DROPPED[key]
        elif key in state:
            parameters[key] = _value(state[key], f"{where}: parameter {key!r} of {described.name}")
    return kind(**parameters)


def _value(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (list, tuple, set)):
        return type(value)(_value(item, where) for item in value)
    if isinstance(value, dict):
        return {_value(key, where): _value(item, where) for key, item in value.items()}
    if isinstance(value, Inert):
        if value.module.startswith("numpy") and value.name == "scalar" and len(value.arguments) == 2:
            return _numpy_scalar(value, where)
        if value.module.partition(".")[0] == "sklearn" or (value.module, value.name) in OWN:
            return _estimator(value, where)
    name = f"{value.module}.{value.name}" if isinstance(value, (Inert, InertClass)) else type(value).__name__
    raise InputError(
        f"{where} is a {name}: only numbers, texts, collections and estimators are read from a file"
    )


def _numpy_scalar(value: Inert, where: str) -> Any:
    kind, raw = value.arguments
    if not isinstance(kind, Inert) or not isinstance(raw, (bytes, str)):
        raise InputError(f"{where} is a NumPy scalar that cannot be read")
    dtype = np.dtype(str(kind.arguments[0]))
    if dtype.hasobject:
        raise InputError(f"{where} is a NumPy scalar of objects")
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, dtype=dtype, count=1)[0].item()


def _from_skops(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if "schema.json" not in archive.namelist():
            raise InputError("the archive has no schema.json: it was not written by skops")
        schema = json.loads(archive.read("schema.json"))
    return _skops_node(schema)


def _skops_node(node: Any) -> Any:
    """The description of an object from its node in a skops schema."""
    kind, content = node.get("__loader__"), node.get("content")
    if kind == "JsonNode":
        return json.loads(content)
    if kind in ("ListNode", "TupleNode", "SetNode"):
        items = [_skops_node(item) for item in content]
        return {"ListNode": list, "TupleNode": tuple, "SetNode": set}[kind](items)
    if kind == "DictNode":
        return {key: _skops_node(item) for key, item in content.items()}
    described = Inert(str(node.get("__module__")), str(node.get("__class__")))
    if kind == "ObjectNode" and isinstance(content, dict):
        described.state = _skops_node(content)
    return described
