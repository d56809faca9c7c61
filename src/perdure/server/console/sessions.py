"""The list of sessions: filters, search, pages, and failures by their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.fleet.inputs import waiting_counted
from perdure.fleet.why.lists import glance
from perdure.model import Status
from perdure.server.console.rendering import STATUS_WORDS, Pages, asked, by_status
from perdure.session.handover import fleet_of, works_of
from perdure.shapes.sessions import step_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.model import SessionRow
    from perdure.protocols import Work
    from perdure.session.handover import Fleet

PAGE = 50
CAUSES = 5
"""Causes of failures that are shown, the most frequent first."""
AGES = {"": "any time", "1h": "the last hour", "1d": "the last day", "7d": "the last week", "old": "over a week ago"}
_HOUR = 3_600_000
_SPANS = {"1h": _HOUR, "1d": 24 * _HOUR, "7d": 7 * 24 * _HOUR}
ORDER = ("running", "waiting_approval", "in_doubt", "failed", "paused", "waiting_result", "sleeping", "idle")
"""In which order statuses are offered; the others follow."""


class Wanted(NamedTuple):
    """What a person has filtered the list by."""

    status: str = ""
    agent: str = ""
    owner: str = ""
    error: str = ""
    label: str = ""
    age: str = ""
    q: str = ""

    @property
    def any(self) -> bool:
        """Whether anything was filtered."""
        return any(self)

    def query(self, **change: str) -> dict[str, str]:
        """The filter as fields of an address, some of them changed."""
        return {k: v for k, v in {**self._asdict(), **change}.items() if v}

    def options(self, now: int) -> dict[str, Any]:
        """The filter as a store takes it."""
        found: dict[str, Any] = {
            name: getattr(self, name) or None for name in ("status", "agent", "owner", "error", "label")
        }
        found["search"] = self.q or None
        if self.age in _SPANS:
            found["since"] = now - _SPANS[self.age]
        elif self.age == "old":
            found["before"] = now - _SPANS["7d"]
        return found

    def words(self) -> str:
        """The filter for people to read."""
        said = [
            STATUS_WORDS.get(self.status, self.status) if self.status else "",
            f"agent {self.agent}" if self.agent else "",
            f"owner {self.owner}" if self.owner else "",
            f"error {self.error}" if self.error else "",
            f"labelled “{self.label}”" if self.label else "",
            f"changed in {AGES[self.age]}" if self.age in _SPANS else "changed over a week ago" if self.age else "",
            f"named like “{self.q}”" if self.q else "",
        ]
        return ", ".join(s for s in said if s)


def wanted(fields: Mapping[str, Any]) -> Wanted:
    """The filter that an address or a form names; what cannot be is left out."""
    found = Wanted(*(asked(fields, name).strip() for name in Wanted._fields))
    if found.status not in list(Status):
        found = found._replace(status="")
    return found if found.age in AGES else found._replace(age="")


class Line(NamedTuple):
    """One session in the list."""

    row: SessionRow
    step: int
    branches: int
    what: str


def line_of(row: SessionRow, work: Work | None, fleet: Fleet, now: int) -> Line:
    """What the list says of a session, from its row and its place on the board: a page of them must not open any."""
    return Line(row, step_of(row), len(row.branches), glance(row, work, fleet, now))


class Cause(NamedTuple):
    """Sessions that stand still for the same reason."""

    error: str
    number: int
    share: float
    """Of the most frequent cause."""
    agents: str
    """Whose sessions they are."""


class Summary(NamedTuple):
    """All sessions, counted."""

    total: int
    statuses: list[tuple[str, int]]
    agents: list[str]
    causes: list[Cause]


def summary_of(counts: list[tuple[str, str, str, int]]) -> Summary:
    """How many there are of what."""
    statuses = by_status(counts)
    causes: dict[str, dict[str, int]] = {}
    for status, agent, error, number in counts:
        if error and status in (Status.FAILED, Status.IN_DOUBT, Status.PAUSED):
            agents = causes.setdefault(error, {})
            agents[agent] = agents.get(agent, 0) + number
    rank = {name: i for i, name in enumerate(ORDER)}
    ordered = sorted(statuses.items(), key=lambda s: (rank.get(s[0], len(ORDER)), s[0]))
    sums = sorted(((sum(agents.values()), error) for error, agents in causes.items()), key=lambda c: (-c[0], c[1]))
    found = [Cause(error, n, n / sums[0][0], _agents(causes[error])) for n, error in sums[:CAUSES]]
    return Summary(sum(statuses.values()), ordered, sorted({a for _, a, _, _ in counts if a}), found)


def _agents(counts: dict[str, int]) -> str:
    """Whose they are, the most first."""
    names = sorted(counts, key=lambda a: (-counts[a], a))
    return ", ".join(name or "no agent" for name in names[:4]) + (", …" if len(names) > 4 else "")


class Listing(Pages):
    """The page of sessions."""

    async def page(self, request: Request) -> Response:
        """All sessions, newest first."""
        db, now = self._ctx.db, self._console.now
        filter = wanted(request.query_params)
        after = asked(request.query_params, "after", 600)
        rows = await db.sessions(**filter.options(now), newest=True, after=after or None, limit=PAGE + 1)
        rows = await self._ctx.blocking(waiting_counted, self._kernel, rows)
        summary = summary_of(await db.counts())
        following = rows[PAGE - 1].cursor if len(rows) > PAGE else None
        works = await self._ctx.blocking(works_of, self._kernel.store, [row.id for row in rows[:PAGE]])
        fleet = await self._ctx.blocking(fleet_of, self._kernel.store, works)
        part = request.headers.get("hx-target") == "list"
        return self._console.page(
            request,
            "sessions_list.html" if part else "sessions.html",
            wanted=filter, lines=[line_of(r, works.get(r.id), fleet, now) for r in rows[:PAGE]], after=after,
            following=following, summary=summary, ages=AGES,
        )  # fmt: skip
