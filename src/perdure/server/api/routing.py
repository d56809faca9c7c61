"""The one table of the API: what each path takes and answers. It checks requests, and the documentation is made of it.

Paths are matched on what was sent, segment by segment: a session's id may hold a slash, which a client writes as %2F.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
import msgspec.inspect

from perdure.server.problems import Refusal
from perdure.server.request_checks import respond
from perdure.shapes.basics import readable
from perdure.system.commands import asked_by_http
from perdure.system.wording import GivenTwice, once_each

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from perdure.server.app import Ctx
    from perdure.server.request_checks import Receive, Scope, Send

    Handler = Callable[["Call[Any, Any]"], Awaitable[Any]]

PREFIX = "/api/v1"
JSON = "application/json"
SSE = "text/event-stream"

Q = TypeVar("Q")
B = TypeVar("B")
H = TypeVar("H", bound="Handler")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No parameters."""


class Call(NamedTuple, Generic[Q, B]):
    """One request, checked: ``query`` and ``body`` are what the table says they are."""

    ctx: Ctx
    path: dict[str, str]
    query: Q
    body: B
    headers: dict[str, str]

    @property
    def session(self) -> str:
        """The session that the path names."""
        return self.path["session"]


Stream = Callable[[Any, Any, Any], Awaitable[None]]
"""What a handler answers with that sends events: an ASGI application of its own."""


class Endpoint(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    """Below the prefix; ``{name}`` stands for one segment."""
    handler: Handler
    query: type[msgspec.Struct]
    body: type[msgspec.Struct] | None
    answer: Any
    """The type of the answer's body."""
    status: int
    errors: tuple[int, ...]
    """Beside those that every request may end with, and every one that names a session (404, 410)."""
    media: str
    open: bool
    """Whether it is answered without a token."""
    tag: str

    @property
    def name(self) -> str:
        """Its name in generated clients."""
        return self.handler.__name__

    @property
    def about(self) -> str:
        """What it does, as the handler's docstring says."""
        return (self.handler.__doc__ or "").strip()

    @property
    def segments(self) -> list[str]:
        """The parts of its path."""
        return self.path.strip("/").split("/")


def endpoint(
    method: str, path: str, *, tag: str, answer: Any = None, status: int = 200, errors: tuple[int, ...] = (),
    media: str = JSON, open: bool = False,
) -> Callable[[H], H]:  # fmt: skip
    """Make a handler a row of the table: what it takes and answers is what its annotations say.

    ``answer`` is what a stream consists of: its handler answers with a ``Stream``.
    """

    def mark(handler: H) -> H:
        said = get_type_hints(handler)
        query, body = get_args(said["call"])
        takes = None if body is type(None) else body
        row = Endpoint(method, path, handler, query, takes, answer or said["return"], status, errors, media, open, tag)
        vars(handler)["endpoint"] = row
        return handler

    return mark


def endpoints(*modules: ModuleType) -> list[Endpoint]:
    """The rows that modules define, in their order."""
    made = [getattr(value, "endpoint", None) for module in modules for value in vars(module).values()]
    return [row for row in made if isinstance(row, Endpoint)]


class Api:
    """Answers requests by the table."""

    def __init__(self, ctx: Ctx, table: Sequence[Endpoint]) -> None:
        self._ctx = ctx
        self._table = [(e.segments, e) for e in table]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        asked_by_http()
        endpoint, path = self._find(scope)
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        query = _query(endpoint, scope["query_string"])
        body = _body(endpoint, headers, (await receive()).get("body", b""))
        found = await endpoint.handler(Call(self._ctx, path, query, body, headers))
        if endpoint.media == SSE:
            await found(scope, receive, send)
        else:
            await respond(send, endpoint.status, _encoded(found), JSON, {})

    def _find(self, scope: Scope) -> tuple[Endpoint, dict[str, str]]:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        sent = raw.partition(b"?")[0].partition(PREFIX.encode() + b"/")[2]
        parts = [_decoded(part) for part in sent.split(b"/")]
        others: list[str] = []
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        for segments, endpoint in self._table:
            path = _matched(segments, parts)
            if path is None:
                continue
            if endpoint.method == method:
                return endpoint, path
            others.append(endpoint.method)
        if others:
            allowed = ", ".join(sorted({*others, *(["HEAD"] if "GET" in others else [])}))
            raise Refusal(405, "wrong-method", f"this path has {allowed}", Allow=allowed)
        raise Refusal(404, "no-such-path", f"there is nothing at this path: {PREFIX}/openapi.json lists what there is")


def _matched(segments: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(segments) != len(parts):
        return None
    found: dict[str, str] = {}
    for segment, part in zip(segments, parts, strict=True):
        if segment.startswith("{"):
            found[segment[1:-1]] = part
        elif segment != part:
            return None
    return found


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Refusal(422, "invalid-request", "the path is not UTF-8") from None


def _query(endpoint: Endpoint, raw: bytes) -> Any:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise Refusal(422, "invalid-request", "the query is not percent-encoded UTF-8") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal(422, "invalid-request", "a parameter was given twice")
    try:
        query = msgspec.convert(found, endpoint.query, strict=False)
    except msgspec.ValidationError as e:
        raise Refusal(422, "invalid-request", readable(f"in the query: {_told(e, endpoint.query)}")) from None
    if nothing := [name for name in found if getattr(query, name) is None]:
        # "null" would pass for a number that was left out.
        raise Refusal(422, "invalid-request", f"in the query: {nothing[0]} has no value; leave it out")
    return query


def _body(endpoint: Endpoint, headers: dict[str, str], raw: bytes) -> Any:
    takes = endpoint.body or Nothing
    if endpoint.body is None and not raw:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and (raw or kind):
        raise Refusal(415, "wrong-media-type", f"send {JSON}")
    try:
        said = msgspec.json.decode(raw or b"{}", type=takes)
    except msgspec.ValidationError as e:
        raise Refusal(422, "invalid-request", readable(f"in the body: {_told(e, takes)}")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Refusal(400, "not-json", _half_a_character(raw) or readable(str(e))) from None
    if raw:
        _refuse_doubles(raw)
    return said if endpoint.body is not None else None


def _refuse_doubles(raw: bytes) -> None:
    """Which of two values under one name was meant, nobody knows."""
    try:
        # What numbers there are was read before.
        json.loads(raw, object_pairs_hook=once_each, parse_int=len)
    except GivenTwice as e:
        raise Refusal(422, "invalid-request", readable(f"in the body: {e}")) from None
    except RecursionError:
        raise Refusal(400, "not-json", "it is nested too deep") from None


def _told(error: msgspec.ValidationError, of: type[msgspec.Struct]) -> str:
    """What is wrong with a request; where a name is not known, with those that are."""
    words = str(error)
    if "unknown field" not in words:
        return words
    place: msgspec.inspect.Type = msgspec.inspect.type_info(of)
    for part in re.findall(r"\.(\w+)|\[", words.rpartition(" - at `$")[2]):
        place = _within(place, part)
    struct = next((one for one in _choices(place) if isinstance(one, msgspec.inspect.StructType)), None)
    names = [field.encode_name for field in struct.fields] if struct is not None else []
    return f"{words}; known are {', '.join(names)}" if names else f"{words}; none is known there"


def _within(place: msgspec.inspect.Type, name: str) -> msgspec.inspect.Type:
    """The type of a field, or of the items of a list."""
    for one in _choices(place):
        if isinstance(one, msgspec.inspect.StructType) and name:
            return next(field.type for field in one.fields if field.encode_name == name)
        if isinstance(one, msgspec.inspect.ListType) and not name:
            return one.item_type
    return msgspec.inspect.AnyType()


def _choices(place: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return place.types if isinstance(place, msgspec.inspect.UnionType) else (place,)


def _half_a_character(raw: bytes) -> str:
    """What is wrong with a body that is said to be truncated, and is not; "" of any other."""
    try:
        json.dumps(json.loads(raw), ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        return f"a string in it has half of a surrogate pair ({e.object[e.start]!a}), which is no character"
    except (ValueError, RecursionError):
        pass
    return ""


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)
