"""Shapes as JSON Schema, with what the lines below their fields say: for OpenAPI, ``perdure schema`` and the docs."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.shapes.basics import Documented

if TYPE_CHECKING:
    from collections.abc import Sequence


def schemas(kinds: Sequence[Any], ref_template: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The schema of each type, and the shapes that they refer to by their names."""
    found, parts = msgspec.json.schema_components(kinds, ref_template=ref_template)
    said = _said()
    for name, schema in parts.items():
        for field, about in said.get(name.partition("_")[0], {}).items():
            one = schema["properties"][field]
            # A reference stands for a whole schema, and its own words with it.
            schema["properties"][field] = one if "$ref" in one else {**one, "description": about}
    return _tidy(list(found)), {_name(name): _tidy(schema) for name, schema in parts.items()}


def _name(name: str) -> str:
    """``Page_Session_``, as a page of sessions is called at first, is a ``SessionPage``."""
    return re.sub(r"\bPage_(\w+)_$", r"\1Page", name)


def _tidy(schema: Any) -> Any:
    """Without titles that repeat a name, and with the names that shapes have in documents."""
    if isinstance(schema, dict):
        known: dict[str, Any] = {k: _tidy(v) for k, v in schema.items()}  # pyright: ignore
        kept = {k: v for k, v in known.items() if not (k == "title" and isinstance(v, str))}
        return {**kept, "$ref": _name(kept["$ref"])} if isinstance(kept.get("$ref"), str) else kept
    return [_tidy(v) for v in schema] if isinstance(schema, list) else schema  # pyright: ignore


def _said() -> dict[str, dict[str, str]]:
    """What the lines below fields say of them, by shape and by the field's name in JSON."""
    found: dict[str, dict[str, str]] = {}
    for kind in _below(Documented):
        bases = [base for base in reversed(kind.__mro__) if issubclass(base, Documented)]
        said = {name: text for base in bases for name, text in _lines(base).items()}
        names = {f.name: f.encode_name for f in msgspec.structs.fields(kind)}
        found[kind.__name__] = {names[name]: text for name, text in said.items() if name in names}
    return found


def _below(base: type[Documented]) -> list[type[Documented]]:
    return [kind for one in base.__subclasses__() for kind in (one, *_below(one))]


@functools.cache
def _lines(kind: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, said in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
            found[field.target.id] = " ".join(str(said.value.value).split()).replace("``", "`")
    return found
