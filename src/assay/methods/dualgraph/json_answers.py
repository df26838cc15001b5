"""JSON out of a model's answer: found, mended where that is safe, and checked against a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from assay.methods.dualgraph.records import InvalidOutput

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```[a-zA-Z0-9_-]*\s*\n(.*?)(?:```|\Z)", re.DOTALL)
_COMMA_BEFORE_END = re.compile(r",(?=\s*[}\]])")
_SHOWN = 60


def read_answer(text: str, schema: Mapping[str, Any]) -> Any:
    """The JSON value in an answer, with the types that the schema asks for.

    What is before and after the outermost braces, a code fence, a model's thoughts, and commas before a
    closing bracket are ignored. Numbers that were written as text count as numbers.

    Args:
        text: the answer.
        schema: a JSON schema of objects, arrays, strings, integers, numbers and booleans.

    Raises:
        InvalidOutput: there is no JSON, or it does not match; the message can be shown to the model.
    """
    return conform(_load(_THOUGHTS.sub("", text)), schema)


def conform(value: Any, schema: Mapping[str, Any], path: str = "the answer") -> Any:
    """`value` with the types of the schema; properties that it does not name are left out.

    Raises:
        InvalidOutput: a part is missing or has another type.
    """
    kind = schema["type"]
    if kind == "object":
        if not isinstance(value, dict):
            raise InvalidOutput(f"{path} must be an object, got {_shown(value)}")
        missing = [name for name in schema.get("required", ()) if name not in value]
        if missing:
            raise InvalidOutput(f"{path} lacks {', '.join(missing)}")
        parts = schema["properties"]
        return {name: conform(value[name], parts[name], f"{path}.{name}") for name in parts if name in value}
    if kind == "array":
        if not isinstance(value, list):
            raise InvalidOutput(f"{path} must be a list, got {_shown(value)}")
        return [conform(item, schema["items"], f"{path}[{i}]") for i, item in enumerate(value)]
    return _scalar(value, kind, path)


def _scalar(value: Any, kind: str, path: str) -> Any:
    if kind == "string" and isinstance(value, str):
        return value
    if kind == "boolean":
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
            return value.strip().casefold() == "true"
    if kind in ("integer", "number") and not isinstance(value, bool) and isinstance(value, (int, float, str)):
        digits = re.sub(r"^(?:id_|EN|#)", "", value.strip()) if isinstance(value, str) else value
        try:
            number = float(digits)
        except ValueError:
            number = float("nan")
        if kind == "number" and abs(number) < 1e15:
            return number
        if kind == "integer" and abs(number) < 1e15 and number == int(number):
            return int(number)
    names = {"string": "text", "boolean": "true or false", "integer": "a whole number", "number": "a number"}
    raise InvalidOutput(f"{path} must be {names[kind]}, got {_shown(value)}")


def _load(text: str) -> Any:
    fenced = _FENCE.search(text)
    candidates = [text, fenced[1] if fenced else "", _between_braces(text)]
    problem = "it contains no JSON object"
    for candidate in candidates:
        for attempt in (candidate, _COMMA_BEFORE_END.sub("", candidate)):
            if "{" not in attempt:
                continue
            try:
                return json.loads(attempt, strict=False)
            except (json.JSONDecodeError, RecursionError) as error:
                problem = f"it is not valid JSON ({error})"
    raise InvalidOutput(f"the answer can't be read: {problem}")


def _between_braces(text: str) -> str:
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
