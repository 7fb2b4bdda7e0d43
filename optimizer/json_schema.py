"""The JSON Schema of what ``torchopt verify --format json`` prints, made from its types.

``python -m torchopt_cli.optimizer.json_schema FILE`` writes it.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from .verifying.report_types import ReportJson

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def report_schema() -> dict[str, Any]:
    """The schema of a report: JSON Schema 2020-12. Keys may be added, so unknown ones are allowed."""
    definitions: dict[str, Any] = {}
    root = _schema(ReportJson, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A verification by torchopt",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if is_typeddict(kind):
        name = kind.__name__.removesuffix("Json")
        if name not in definitions:
            definitions[name] = {}  # the place is taken, should it hold itself
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(get_args(kind)[0], definitions)}
    if get_origin(kind) in (Union, types.UnionType):
        parts = [_schema(part, definitions) for part in get_args(kind)]
        if all(part.keys() == {"type"} for part in parts):
            return {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}
    return {"type": _NAMES[kind]}


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a TypedDict; its docstring, which is for readers of the schema, is the description."""
    hints = get_type_hints(kind)
    text = inspect.getdoc(kind) or ""
    return {
        "description": " ".join(text.split()).replace("``", "`"),
        "type": "object",
        "properties": {name: _schema(hint, definitions) for name, hint in hints.items()},
        "required": list(hints),
    }


def schema_text() -> str:
    """The schema as it is kept in the documentation."""
    return json.dumps(report_schema(), indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
