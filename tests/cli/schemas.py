"""Holding what a command prints for programs against its declared schema."""

from __future__ import annotations

import functools
import json
from typing import Any

from jsonschema import Draft202012Validator

from perdure.cli.output import OUTPUTS, schema_of


def documents(command: str, out: str) -> list[Any]:
    """The JSON documents that a command printed: one, or one a line."""
    return [json.loads(part) for part in (out.splitlines() if OUTPUTS[command].lines else [out])]


def check(command: str, out: str) -> list[Any]:
    """All of them, once each has been found to fit."""
    found = documents(command, out)
    for document in found:
        problem = next(validator(command).iter_errors(document), None)
        assert problem is None, f"perdure {command}: {problem.json_path}: {problem.message}"
    return found


def shapes_of(command: str, document: Any) -> set[str]:
    """The names of the shapes that a document of this command fits."""
    parts = schema_of(command)
    kinds = parts.get("anyOf", [{k: v for k, v in parts.items() if k in ("$ref", "type")}])
    return {
        kind.get("$ref", kind.get("type"))
        for kind in kinds
        if Draft202012Validator({**kind, "$defs": parts["$defs"]}).is_valid(document)
    }


@functools.cache
def validator(command: str) -> Draft202012Validator:
    """A validator of what a command prints; the schema itself is checked, too."""
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
