"""What every request passes first: the name it was sent to, the size of its body, who sent it."""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from perdure.server.auth import FORM_HEADER, SAFE, Guard, address_of
from perdure.server.problems import MEDIA, Refusal, encoded, problem_of
from perdure.server.security_headers import with_headers
from perdure.system.commands import quoted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 2 << 20
"""Bytes a request may have; a message may have half of that."""
OPEN = ("/healthz", "/readyz", "/api/v1/openapi.json", "/login")
"""Paths that anybody may ask for: they tell nothing about anybody's sessions."""
OPEN_BELOW = "/static/"
FORM = "application/x-www-form-urlencoded"
ONCE = ("host", "authorization", "idempotency-key", "content-type", "content-length", "origin", "last-event-id",
        FORM_HEADER)  # fmt: skip
"""Headers of which there is one in a request."""


_HOST = re.compile(r"(?:\[([0-9A-Za-z:.%]*)\]|([^\[\]:@/\\?#\s]*))(?::[0-9]*)?", re.ASCII)
"""A name or an address, and its port."""


class Hosts:
    """By which names the server may be called: ``more`` beside the machine's own; "*" for any."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        self._any = "*" in more
        self._names = {"localhost", os.uname().nodename.lower(), *(h.lower() for h in more)}

    def check(self, host: str) -> None:
        """A page of somebody else whose name was pointed at this machine calls it by that name: refuse it.

        An address cannot be pointed anywhere, so addresses are fine.
        """
        name = _host_name(host)
        if self._any or name in self._names or address_of(name) is not None:
            return
        if _HOST.fullmatch(host) is None:
            said = f"its Host header is {host[:100]!r}: that is no name, and no name with a port"
        elif not name:
            said = "the request names no host: say in its Host header by which name the server is called"
        else:
            said = f"{name[:100]!r} is not a name of this server: start it with --allow-host {quoted(name[:100])}"
        raise Refusal(403, "forbidden-host", said)


class Gate:
    """The outermost part of the server."""

    def __init__(self, app: App, guard: Guard, hosts: Hosts) -> None:
        self._app = app
        self._guard = guard
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": with_headers(message.get("headers", []))}
            await send(message)

        try:
            await self._answer(scope, receive, safely)
        except Exception as error:
            problem, headers = problem_of(error)
            if begun:
                # Nothing sensible can follow half an answer: the connection is dropped.
                raise
            if problem.status == 401 and _wants_page(scope):
                await respond(safely, 401, _login_page(_wish(scope), wrong=False), "text/html; charset=utf-8", headers)
            else:
                await respond(safely, problem.status, encoded(problem), MEDIA, headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = [(k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in scope["headers"]]
        headers = dict(told)
        for name in ONCE:
            if sum(name == one for one, _ in told) > 1:
                # Which of them is meant nobody knows, and whoever stands before us may have looked at the other one.
                raise Refusal(400, "repeated-header", f"the header {name} was sent twice: send it once")
        method, path = scope["method"], scope["path"]
        self._hosts.check(headers.get("host", ""))
        body = await read_body(receive, headers)
        if body is None:
            return
        is_form = headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
        if path == "/login" and method == "POST":
            await self._login(scope, send, body if is_form else b"")
            return
        if method == "GET" and _wants_page(scope) and await self._token_in_address(scope, send):
            return
        if path not in OPEN and not path.startswith(OPEN_BELOW):
            try:
                self._guard.check(method, headers, body if is_form else None)
            except Refusal as refused:
                raise self._about_address(scope, refused) from None
        elif method not in SAFE:
            raise Refusal(405, "wrong-method", "only GET", Allow="GET, HEAD")
        await self._app(scope, _replay(body, receive), send)

    async def _token_in_address(self, scope: Scope, send: Send) -> bool:
        """The address that ``perdure serve`` printed brings the token once; the browser keeps a cookie instead."""
        told = [v for k, v in _query(scope) if k == "token"]
        if not told:
            return False
        if self._guard.needs_token and not self._guard.is_token(told[0]):
            await respond(send, 401, _login_page(_wish(scope), wrong=True), "text/html; charset=utf-8", {})
            return True
        await respond(send, 303, b"", "text/plain", {"location": _wish(scope), **self._cookie(scope)})
        return True

    def _about_address(self, scope: Scope, refused: Refusal) -> Refusal:
        """Why somebody is refused, who may have sent the right token in the wrong place."""
        told = [v for k, v in _query(scope) if k == "token"]
        if refused.problem.status != 401 or not told or not self._guard.is_token(told[0]):
            return refused
        detail = "the token in this address is right; programs send it as Authorization: Bearer TOKEN"
        return Refusal(401, "token-in-address", detail, **{k.replace("-", "_"): v for k, v in refused.headers.items()})

    async def _login(self, scope: Scope, send: Send, body: bytes) -> None:
        try:
            fields = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=100))
        except ValueError:
            raise Refusal(422, "invalid-request", "this form has a token, and where to go then") from None
        to = _here(fields.get("to", "/"))
        if not self._guard.is_token(fields.get("token", "").strip()):
            await respond(send, 401, _login_page(to, wrong=True), "text/html; charset=utf-8", {})
            return
        await respond(send, 303, b"", "text/plain", {"location": to, **self._cookie(scope)})

    def _cookie(self, scope: Scope) -> dict[str, str]:
        return {"set-cookie": self._guard.set_cookie(secure=scope.get("scheme") == "https")}


def _host_name(host: str) -> str:
    """The name without the port; all of it where it is not just a name, or one with a port.

    >>> _host_name("LocalHost:80"), _host_name("[::1]:80"), _host_name("10.0.0.1")
    ('localhost', '::1', '10.0.0.1')
    >>> _host_name("127.0.0.1:80@evil.com"), _host_name("[::1]evil.com")
    ('127.0.0.1:80@evil.com', '[::1]evil.com')
    """
    found = _HOST.fullmatch(host)
    return ((found[1] or found[2]) if found is not None else host).lower()


async def read_body(receive: Receive, headers: dict[str, str]) -> bytes | None:
    """The whole body, which must not be too large; None when whoever sends it has gone before its end.

    Half a body is not an empty one: what leaves everything to the server, such as which worker is to go, means all.
    """
    limit = f"a body has at most {MAX_BODY} bytes"
    size = headers.get("content-length", "0")
    if size.isdigit() and int(size) > MAX_BODY:
        raise Refusal(413, "too-large", limit)
    parts: list[bytes] = []
    total = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        if total > MAX_BODY:
            raise Refusal(413, "too-large", limit)
        if not message.get("more_body"):
            return b"".join(parts)


async def respond(send: Send, status: int, body: bytes, media: str, headers: dict[str, str]) -> None:
    """Send a whole answer."""
    every = {"content-type": media, "content-length": str(len(body)), **headers}
    raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """What has been read is given once more; after it, only the end of the connection is news."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _wants_page(scope: Scope) -> bool:
    accepted = next((v for k, v in scope["headers"] if k.lower() == b"accept"), b"")
    return b"text/html" in accepted and not scope["path"].startswith("/api/")


def _here(to: str) -> str:
    """A path of this server; anything that would lead elsewhere becomes its front page.

    >>> _here("/sessions?x=1"), _here("//evil.example/"), _here("https://evil.example/")
    ('/sessions?x=1', '/', '/')
    """
    fine = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isascii() and to.isprintable()
    return to if fine else "/"


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _wish(scope: Scope) -> str:
    """The page that was asked for, with all its address says but a token."""
    if scope["path"] == "/login" or scope["method"] not in SAFE:
        return "/"
    rest = urlencode([(k, v) for k, v in _query(scope) if k != "token"])
    return _here(quote(scope["path"]) + (f"?{rest}" if rest else ""))


def _login_page(to: str, *, wrong: bool) -> bytes:
    said = "<p><strong>That token is wrong.</strong></p>" if wrong else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Perdure</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/static/login.css"></head><body><main><h1>Perdure</h1>'
        f'{said}<form method="post" action="/login"><input type="hidden" name="to" value="{html.escape(to)}">'
        '<p><label for="token">The token that <code>perdure serve</code> printed</label></p>'
        '<p><input id="token" name="token" type="password" autocomplete="current-password" required autofocus> '
        "<button>Enter</button></p></form></main></body></html>"
    ).encode()
