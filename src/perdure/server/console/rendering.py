"""How pages are made: templates that escape everything, the headers that let nothing else run, and who is asking.

Whatever an agent wrote may be hostile. HTML is escaped by the templates; what is left then is made harmless here:
control characters, terminal escapes, characters that turn the direction of text around or cannot be seen, and texts
without end.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote, urlencode

from starlette.responses import HTMLResponse, RedirectResponse

from perdure._version import __version__
from perdure.errors import InvalidInput, MissingExtra
from perdure.model import TAG_PREFIX
from perdure.server.problems import problem_of
from perdure.system import times, wording

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.aio import AsyncDatabase
    from perdure.model import SessionRow
    from perdure.server.app import Ctx

    Endpoint = Callable[[Request], Awaitable[Response]]

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise MissingExtra("jinja2", "console", error) from None


HEADERS = {"Referrer-Policy": "same-origin"}
"""What pages have beside the headers of every answer, which let nothing run or load that is not ours."""
NAME_COOKIE = "perdure_name"
LONG = 6000
"""Characters of one text that are shown before it is cut."""
_CONTROLS = {0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL"}
FRESH = 500
"""Milliseconds for which a count of all sessions is good."""
STATUS_WORDS = {"waiting_approval": "needs approval", "waiting_result": "awaits a result", "in_doubt": "in doubt"}
"""What is said of statuses whose names say too little."""
TONES = {
    "running": "accent",
    "in_doubt": "bad",
    "failed": "bad",
    "waiting_approval": "warn",
    "paused": "warn",
    "waiting_result": "calm",
    "sleeping": "calm",
}


def make_environment() -> Environment:
    """The templates. What is put into them is made harmless and escaped, without exception."""
    env = Environment(
        loader=PackageLoader("perdure.server.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Any]", env.filters)  # pyright: ignore[reportUnknownMemberType]
    filters.update(
        cut=wording.one_line, size=wording.size, number=wording.number, money=wording.money, span=times.span,
        when=times.when, moment=times.parse_timestamp,
        json=as_json, brief=wording.brief, shown=shown, plural=wording.count,
    )  # fmt: skip
    shared = cast("dict[str, Any]", env.globals)  # pyright: ignore[reportUnknownMemberType]
    shared.update(
        url=url, enc=enc, status_words=STATUS_WORDS, tones=TONES, version=__version__, call_words=wording.call_words,
        ago=times.ago, static=static, once=lambda: secrets.token_hex(8),
    )  # fmt: skip
    return env


def _finalized(value: Any) -> Any:
    # What templates made themselves is marked as such, and was finalized piece by piece.
    return harmless(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def url(path: str, **query: Any) -> str:
    """An address of the console; what is None or "" is left out.

    >>> url("/session", id="a b/c", step=3, view=None)
    '/session?id=a%20b%2Fc&step=3'
    """
    said = {k: v for k, v in query.items() if v is not None and v != ""}
    return f"{path}?{urlencode(said, quote_via=quote, safe='', doseq=True)}" if said else path


def static(name: str) -> str:
    """The address of a file that comes with the console; a new version of perdure is a new address."""
    return f"/static/{name}?v={__version__}"


def enc(name: str) -> str:
    """A name for a hidden field: whatever characters it has, they come back as they are."""
    return quote(name, safe="")


class ToldOnce:
    """What a page is to say after something was done. The address names it by a number that is good for one look.

    The words themselves are never in an address: whoever makes up a link cannot have a page of ours say anything.
    """

    KEPT = 200

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def keep(self, words: str) -> str:
        """Keep words for the page that follows; their number."""
        name = secrets.token_hex(8)
        self._words[name] = words[:600]
        while len(self._words) > self.KEPT:
            del self._words[next(iter(self._words))]
        return name

    def read(self, name: str) -> str:
        """The words, once; "" when nobody has said them, or they were read."""
        return self._words.pop(name, "")


class Console:
    """What all pages share: the server's parts, and how a template becomes an answer."""

    def __init__(self, ctx: Ctx) -> None:
        self.ctx = ctx
        self.env = make_environment()
        self.waiting: dict[str, int] = {}
        """How many sessions there are by status, as of a moment ago."""
        self.mark = ""
        """Differs when some session may have changed; as old as the counts."""
        self._counted = -FRESH
        self._told = ToldOnce()

    @property
    def now(self) -> int:
        """The time by the database's clock."""
        return self.ctx.clock.wall()

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page, or a part of one."""
        shared = {
            "request_path": request.url.path,
            "now": self.now,
            "form_token": self.ctx.guard.form_token,
            "me": person(request),
            "store_url": self.ctx.db.url,
            "told": self._told.read(request.query_params.get("told", "")),
            "waiting": self.waiting,
            "sessions_mark": self.mark,
        }
        body = self.env.get_template(template).render({**shared, **values})
        return HTMLResponse(body, status, HEADERS)

    def see(self, request: Request, path: str, *, told: str = "", by: str = "", **query: Any) -> Response:
        """Send the browser on after something was done, and have that page tell it; who did it is remembered."""
        where = url(path, **query, told=self._told.keep(told) if told else None)
        if request.headers.get("hx-request") == "true":
            answer: Response = HTMLResponse("", 200, {**HEADERS, "HX-Redirect": where})
        else:
            answer = RedirectResponse(where, 303, HEADERS)
        if by:
            answer.set_cookie(NAME_COOKIE, quote(by), max_age=400 * 86_400, samesite="strict", httponly=True)
        return answer

    def problem(self, request: Request, error: Exception) -> Response:
        """A page that says what went wrong; a part of a page when only that was asked for."""
        found, _ = problem_of(error)
        part = request.headers.get("hx-request") == "true" and request.headers.get("hx-boosted") != "true"
        template = "problem_part.html" if part else "problem.html"
        said = found.detail or f"{found.title}."
        return self.page(request, template, status=found.status, said=said, code=found.status)

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint whose errors are told as pages."""

        @wraps(endpoint)
        async def answered(request: Request) -> Response:
            try:
                await self._count()
                return await endpoint(request)
            except Exception as e:
                return self.problem(request, e)

        return answered

    async def nav(self, request: Request) -> Response:
        """The list of pages, with what waits on them."""
        return self.page(request, "nav.html", here=request.query_params.get("here", "")[:40])

    async def _count(self) -> None:
        """Know how much waits; a moment ago is good enough."""
        now = self.ctx.clock.monotonic()
        if now - self._counted < FRESH:
            return
        self._counted = now
        self.mark, counts = await sessions_mark(self.ctx.db)
        self.waiting = by_status(counts)


class Pages:
    """Some pages of a console, and what they are made of."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ctx = console.ctx
        self._kernel = console.ctx.db.kernel


async def sessions_mark(db: AsyncDatabase) -> tuple[str, list[tuple[str, str, str, int]]]:
    """Something that differs when the list of sessions may have changed, and their counts."""
    rows = await db.sessions(newest=True, limit=30)
    counts = await db.counts()
    return short_mark([lasting(row) for row in rows], counts), counts


def lasting(row: SessionRow) -> SessionRow:
    """A row without what differs whenever it is looked at, for marks."""
    return row._replace(lease=row.lease._replace(until=0), now=0)


def by_status(counts: list[tuple[str, str, str, int]]) -> dict[str, int]:
    """How many sessions there are by status."""
    found: Counter[str] = Counter()
    for status, _, _, number in counts:
        found[status] += number
    return dict(found)


def short_mark(*what: Any) -> str:
    """A short name for some values: other values have another one."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def person(request: Request) -> str:
    """Who decides, as they said last time; "" when they never did."""
    return unquote(request.cookies.get(NAME_COOKIE, ""))[:100]


def asked(fields: Mapping[str, Any], name: str, limit: int = 512) -> str:
    """A field of a form or an address, as text of bounded length."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is a file, and a text was expected")
    if len(value) > limit:
        raise InvalidInput(f"{name} has {len(value)} characters, over the limit of {limit}")
    return value


def named(fields: Mapping[str, Any], name: str) -> str:
    """A name that a page of ours has put into a hidden field."""
    return unquote(asked(fields, name, 4096))


def whole(fields: Mapping[str, Any], name: str) -> int | None:
    """A field as a whole number; None when it is not there."""
    said = asked(fields, name, 20).strip()
    if not said:
        return None
    if not said.isascii() or not said.isdigit():
        raise InvalidInput(f"{name} is a whole number, not {said!r}")
    return int(said)


def decider(fields: Mapping[str, Any]) -> str:
    """Who takes a decision; it is recorded, so somebody has to say it."""
    by = asked(fields, "by", 100).strip()
    if not by:
        raise InvalidInput("a decision records who took it: fill in your name")
    return by


def is_tag(branch: str) -> bool:
    """Whether a head is a tag's."""
    return branch.startswith(TAG_PREFIX)


# -- texts and values -------------------------------------------------------------------------------------------------


def harmless(text: str) -> str:
    r"""The text with everything that cannot be seen, or steers how it is shown, made visible.

    >>> harmless("\x1b[2Jpaid\r\n"), harmless("a\u202eb")
    ('⟨ESC⟩[2Jpaid⟨CR⟩\n', 'a⟨U+202E⟩b')
    """
    return wording.visible(text, _named, keep="\n\t")


def _named(c: str) -> str:
    code = ord(c)
    return f"⟨{_CONTROLS.get(code, f'U+{code:04X}')}⟩"


class Shown(NamedTuple):
    """A text as far as it is shown."""

    text: str
    more: int = 0
    """Characters that were left out."""


def shown(text: str, limit: int = LONG) -> Shown:
    """The beginning of a text that may have megabytes."""
    return Shown(text) if len(text) <= limit else Shown(text[:limit], len(text) - limit)


def as_json(value: Any, limit: int = 100_000) -> str:
    """A value as indented JSON of bounded length."""
    text = wording.as_json(value, indent=2)
    return text if len(text) <= limit else text[:limit] + "\n…"


def editable(value: Any) -> str:
    r"""A value as JSON for somebody to edit: what cannot be seen is written out, and comes back as it was.

    >>> editable({"a": "\u200bé"})
    '{\n  "a": "\\u200bé"\n}'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if harmless(text) == text else "".join(c if harmless(c) == c else json.dumps(c)[1:-1] for c in text)
