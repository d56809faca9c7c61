"""The whole table of the API, and the OpenAPI document that is made from it: what is documented is what is checked."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from perdure._version import __version__
from perdure.server.api import approvals, branches, events, sessions, steering
from perdure.server.api.routing import JSON, PREFIX, Call, Nothing, endpoint, endpoints
from perdure.server.problems import MEDIA
from perdure.shapes.basics import Problem
from perdure.shapes.schema import schemas

if TYPE_CHECKING:
    from perdure.server.api.routing import Endpoint

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
    403: "The server was called by a name it does not know or by a page of another server, or a message has a role "
    "that is not allowed here",
    404: "Not there",
    405: "Another method", 409: "It does not fit how things stand", 410: "It was there and is gone",
    413: "Too large", 415: "Not JSON", 422: "It does not fit the documented shape, or cannot be used",
    429: "Too many at once", 500: "An unexpected error", 503: "The store cannot be reached",
}  # fmt: skip
ALWAYS = (401, 403, 422, 503)
NAMED = (404, 410)
WITH_BODY = (400, 413, 415)
REF = "#/components/schemas/{name}"


@endpoint("GET", "/openapi.json", tag="store", open=True)
async def get_openapi(call: Call[Nothing, None]) -> dict[str, Any]:
    """This document."""
    return document()


TABLE = endpoints(sessions, steering, branches, approvals, events, sys.modules[__name__])
"""Every path of the API."""


@functools.cache
def document() -> dict[str, Any]:
    """The whole document."""
    types = {_type_key(t): t for e in TABLE for t in (e.answer, e.body) if t is not None}
    types["Problem"] = Problem
    found, components = schemas(list(types.values()), REF)
    known = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for e in TABLE:
        paths.setdefault(PREFIX + e.path, {})[e.method.lower()] = _operation(e, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": __version__,
            "description": "Durable state for AI agents. Times are RFC 3339 in UTC, with "
            "milliseconds. A segment of a path is "
            "percent-encoded as a whole: a session a/b is asked for as a%2Fb.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "What perdure serve printed"}
            },
        },
    }


def _operation(e: Endpoint, known: dict[str, Any]) -> dict[str, Any]:
    about = inspect.cleandoc(e.about)
    summary, _, more = about.partition("\n\n")
    answer = {"description": STATUSES[e.status], "content": {e.media: _content(e, known)}}
    named = NAMED if "{session}" in e.segments else ()
    failing = sorted({*ALWAYS, *named, *e.errors, *(WITH_BODY if e.body is not None else ())})
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
    (schema,), components = schemas([e.query], REF)
    whole = components[schema["$ref"].rpartition("/")[2]]
    found: list[dict[str, Any]] = []
    for name, said in whole.get("properties", {}).items():
        one = _not_null(said)
        about = one.pop("description", "")
        parameter = {"name": name, "in": "query", "required": name in whole.get("required", ()), "schema": one}
        found.append(parameter | ({"description": about} if about else {}))
    return found


def _header_parameters(e: Endpoint) -> list[dict[str, Any]]:
    if e.body is not None and "key" in e.body.__struct_fields__:
        about = "The same as key in the body, which says the same or nothing."
        return [{"name": "Idempotency-Key", "in": "header", "required": False, "description": about,
                 "schema": {"type": "string", "minLength": 1, "maxLength": 200}}]  # fmt: skip
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


def _type_key(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
