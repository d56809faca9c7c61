"""The OpenAPI document, made from the table: what is documented is what is checked and answered."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from perdure._version import __version__
from perdure.server import shapes
from perdure.server.api.routing import JSON, PREFIX, Call, Endpoint, Nothing
from perdure.server.problems import MEDIA, Problem
from perdure.server.shapes import past, people, work

if TYPE_CHECKING:
    from collections.abc import Sequence

TAGS = {
    "sessions": "Which sessions there are, new ones, and messages to them",
    "past": "Checkpoints, states at any of them, differences, and what was sent to models",
    "branches": "Fork, rewind and tag",
    "people": "Approvals in the shape of AG-UI 1.0, and calls in doubt",
    "steering": "Cancel, retry, pause; one session or many",
    "events": "What happens, as it happens",
    "fleet": "Workers and their queue",
    "store": "The store, and this document",
}
STATUSES = {
    200: "Done", 201: "Made", 202: "Taken", 400: "Not JSON", 401: "The token is missing or wrong",
    403: "The server was called by a name it does not know, or by a page of another server", 404: "Not there",
    405: "Another method", 409: "It does not fit how things stand", 410: "It was there and is gone",
    413: "Too large", 415: "Not JSON", 422: "It does not fit the documented shape, or cannot be used",
    429: "Too many at once", 500: "An unexpected error", 503: "The store cannot be reached",
}  # fmt: skip
ALWAYS = (401, 403, 422, 503)
WITH_BODY = (400, 413, 415)
REF = "#/components/schemas/{name}"


def endpoint(table: Sequence[Endpoint]) -> Endpoint:
    """The row of the table that answers with the document about all of them."""
    made: dict[str, Any] = {}

    async def get_openapi(call: Call[Nothing, None]) -> dict[str, Any]:
        """This document."""
        if not made:
            made.update(document(table))
        return made

    return Endpoint("GET", "/openapi.json", get_openapi, dict[str, Any], open=True, tag="store")


def document(table: Sequence[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    types = {_type_key(t): t for e in table for t in (e.answer, e.body) if t is not None}
    types["Problem"] = Problem
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=REF)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for e in table:
        paths.setdefault(PREFIX + e.path, {})[e.method.lower()] = _operation(e, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": __version__,
            "description": "Durable state for AI agents. Times are milliseconds since 1970. A segment of a path is "
            "percent-encoded as a whole: a session a/b is asked for as a%2Fb.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _described(name, _tidy(schema)) for name, schema in components.items()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "What perdure serve printed"}
            },
        },
    }


def _operation(e: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    about = inspect.cleandoc(e.about)
    summary, _, more = about.partition("\n\n")
    answer = {"description": STATUSES[e.status], "content": {e.media: _content(e, known)}}
    failing = sorted({*ALWAYS, *e.errors, *(WITH_BODY if e.body is not None else ())})
    if e.open:
        failing = [status for status in failing if status in (403, 422)]
    problem = {MEDIA: {"schema": known["Problem"]}}
    operation: dict[str, Any] = {
        "operationId": e.name,
        "tags": [e.tag],
        "summary": " ".join(summary.split()),
        "parameters": [*_path_parameters(e), *_query_parameters(e), *_header_parameters(e)],
        "responses": {
            str(e.status): answer,
            **{str(status): {"description": STATUSES[status], "content": problem} for status in failing},
        },
    }
    if more:
        operation["description"] = more
    if e.body is not None:
        required = any(f.required for f in msgspec.structs.fields(e.body))
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": known[_type_key(e.body)]}}}
    if e.open:
        operation["security"] = []
    return operation


def _content(e: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    """JSON has its schema; a stream is text whose events the description tells of."""
    if e.media != JSON:
        return {"schema": {"type": "string"}}
    return {"schema": known[_type_key(e.answer)]}


def _path_parameters(e: Endpoint) -> list[dict[str, Any]]:
    longest = {"session": 512}
    return [
        {
            "name": segment[1:-1],
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": longest.get(segment[1:-1], 100)},
        }
        for segment in e.segments
        if segment.startswith("{")
    ]


def _query_parameters(e: Endpoint) -> list[dict[str, Any]]:
    (schema,), components = msgspec.json.schema_components([e.query], ref_template=REF)
    whole = components[schema["$ref"].rpartition("/")[2]]
    found: list[dict[str, Any]] = []
    for name, said in whole.get("properties", {}).items():
        one = _not_null(_tidy(said))
        about = one.pop("description", "")
        parameter = {"name": name, "in": "query", "required": name in whole.get("required", ()), "schema": one}
        found.append(parameter | ({"description": about} if about else {}))
    return found


def _header_parameters(e: Endpoint) -> list[dict[str, Any]]:
    if e.media == JSON:
        return []
    about = "The id of the last event that was received: what came after it follows."
    return [{"name": "Last-Event-ID", "in": "header", "required": False, "description": about,
             "schema": {"type": "string", "maxLength": 8000}}]  # fmt: skip


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, not null."""
    options = [o for o in schema.get("anyOf", ()) if o != {"type": "null"}]
    rest = {k: v for k, v in schema.items() if k != "anyOf" and not (k == "default" and v is None)}
    if "enum" in rest:
        rest["enum"] = [value for value in rest["enum"] if value is not None]
    return rest | (options[0] if len(options) == 1 else {"anyOf": options} if options else {})


def _tidy(schema: Any) -> Any:
    """Without titles that repeat a name."""
    if isinstance(schema, dict):
        return {k: _tidy(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}  # pyright: ignore
    return [_tidy(v) for v in schema] if isinstance(schema, list) else schema  # pyright: ignore


def _described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A shape with what the lines below its fields say of them."""
    for field, about in _said_of_fields().get(name, {}).items():
        one = schema["properties"][field]
        # A reference stands for a whole schema, and its own words with it.
        schema["properties"][field] = {**one, "description": about} if "$ref" not in one else one
    return schema


@functools.cache
def _said_of_fields() -> dict[str, dict[str, str]]:
    """What the lines below a field say of it, by shape and by the field's name on the wire."""
    found: dict[str, dict[str, str]] = {}
    for node in (node for module in (past, people, work) for node in ast.parse(inspect.getsource(module)).body):
        kind = getattr(shapes, node.name, None) if isinstance(node, ast.ClassDef) else None
        if not isinstance(node, ast.ClassDef) or kind is None:
            continue
        names = {f.name: f.encode_name for f in msgspec.structs.fields(kind)}
        for field, said in zip(node.body, node.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                text = " ".join(str(said.value.value).split()).replace("``", "`")
                found.setdefault(node.name, {})[names[field.target.id]] = text
    return found


def _type_key(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
