"""Which sessions a listing asks for and in what order: one meaning for every store; and going through all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perdure.errors import InvalidInput
from perdure.model import ASIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.model import SessionRow
    from perdure.protocols import Filter, Store


class Listed(Protocol):
    """What is looked at of a session: its row, or as much of it as a store has at hand."""

    @property
    def owner(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def updated(self) -> int: ...
    @property
    def expires(self) -> int | None: ...
    @property
    def reason(self) -> str: ...


class Asked(NamedTuple):
    """A listing that somebody asks for; what is None does not matter."""

    owner: str | None = None
    status: str | None = None
    agent: str | None = None
    error: str | None = None
    label: str | None = None
    search: str | None = None
    since: int | None = None
    before: int | None = None
    expired: bool = False
    aside: bool = False
    ended: bool = False
    newest: bool = False
    after: str | None = None
    limit: int = 100

    def place(self) -> tuple[int, str] | None:
        """Time and id of the last session seen, for a list that shows the newest first."""
        if self.after is None or not self.newest:
            return None
        updated, colon, id = self.after.partition(":")
        if not (colon and updated.isascii() and updated.isdigit() and len(updated) < 19):
            what = "after, with newest, is the cursor of the last session seen (<updated>:<id>)"
            raise InvalidInput(f"{what}, not {self.after!r:.60}")
        return int(updated), id

    def keeps(self, id: str, found: Listed, now: int = 0) -> bool:
        """Whether a session belongs, at the store's time, to what is asked for, the place to go on from included."""
        if bool(found.reason) != self.ended or not (
            self.aside == id.startswith(ASIDE)
            and self.owner in (None, found.owner)
            and self.status in (None, found.status)
            and self.agent in (None, found.agent)
            and self.error in (None, found.error)
            and self.label in (None, found.label)
            and (self.search is None or self.search in id or self.search in found.owner)
            and (self.since is None or found.updated >= self.since)
            and (self.before is None or found.updated < self.before)
            and (not self.expired or (found.expires is not None and found.expires <= now))
        ):
            return False
        if place := self.place():
            return self.key(id, found.updated) > (-place[0], place[1])
        return self.after is None or id > self.after

    def key(self, id: str, updated: int) -> tuple[int, str]:
        """By this the list is sorted."""
        return (-updated if self.newest else 0, id)

    def sql(
        self, table: str, mark: str, position: str, now: str, text: Callable[[str], str] = str
    ) -> tuple[list[str], list[Any], str]:
        """Conditions on the columns of a table, their values, and the order.

        ``position`` finds a text in another, and ``now`` is the store's time.
        """

        def given(value: str | None) -> str | None:
            return None if value is None else text(value)

        tests: list[tuple[str, tuple[Any, ...]]] = [
            (f"{{p}}({{t}}id, {{m}}) {'=' if self.aside else '<>'} 1", (ASIDE,)),
            ("{t}owner = {m}", (given(self.owner),)),
            ("{t}status = {m}", (given(self.status),)),
            ("{t}agent = {m}", (given(self.agent),)),
            ("{t}error = {m}", (given(self.error),)),
            ("{t}label = {m}", (given(self.label),)),
            ("({p}({t}id, {m}) > 0 or {p}({t}owner, {m}) > 0)", (given(self.search),) * 2),
            ("{t}updated >= {m}", (self.since,)),
            ("{t}updated < {m}", (self.before,)),
        ]
        if place := self.place():
            updated, id = place
            test = "({t}updated < {m} or ({t}updated = {m} and {t}id > {m}))"
            tests.append((test, (updated, updated, text(id))))
        else:
            tests.append(("{t}id > {m}", (given(self.after),)))
        kept = [(test.format(t=table, m=mark, p=position), values) for test, values in tests if values[0] is not None]
        order = f"{table}updated desc, {table}id" if self.newest else f"{table}id"
        conditions = [f"{table}reason {'<>' if self.ended else '='} ''", *(test for test, _ in kept)]
        conditions += [f"{table}expires <= {now}"] * self.expired
        return conditions, [value for _, values in kept for value in values], order


EVERY = Asked()
"""All sessions."""

STATES = ("queued", "working", "waiting", "parked", "paused")
"""Of a session on the board of a fleet."""


def board_tests(which: Filter, state: str, mark: str, text: Callable[[str], str] = str) -> dict[str, Any]:
    """The conditions that a filter of the board stands for, with their values; ``state`` is one in SQL."""
    if which.state and which.state not in STATES:
        raise InvalidInput(f"a session of a fleet is {', '.join(STATES)}, not {which.state!r:.40}")
    asked = {"agent": which.agent, "owner": which.owner, state: which.state}
    tests: dict[str, Any] = {f"{what} = {mark}": text(value) for what, value in asked.items() if value}
    return tests | ({f"tries >= {mark}": which.tries} if which.tries else {})


Count = tuple[str, str, str, int]
"""Status, agent, error, and how many sessions stand so."""
Progress = Callable[[str, int], None]
"""Called with the session that was just done and how many are done so far."""
PAGE = 100


def each_session(store: Store, page: int = PAGE, **chosen: Any) -> Iterator[SessionRow]:
    """All sessions of a store, or those chosen by owner, status or expiry, in the order of their ids."""
    after: str | None = None
    while rows := store.sessions(after=after, limit=page, **chosen):
        after = rows[-1].id
        yield from rows
