"""What a person can do about a session, typed: one list of deeds, each with its command, HTTP call and library call.

Whoever tells what to do next names one of these; how it is typed or called is spelled here and nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from perdure.model import MAIN
from perdure.system.commands import door, typed
from perdure.system.commands import quoted as as_word


class Do(StrEnum):
    """One thing that can be done."""

    APPROVE = "approve"
    ANSWER = "answer"
    RESOLVE = "resolve"
    RETRY = "retry"
    UNPAUSE = "unpause"
    UNHOLD = "unhold"
    WORKER = "worker"
    RUN = "run"
    START = "start"
    MESSAGE = "message"
    WITHDRAW = "withdraw"
    SUBMIT = "submit"
    OUTCOME = "outcome"
    REOPEN = "reopen"
    REVIVE = "revive"
    PROGRAM = "program"
    PROGRAM_REOPENS = "program_reopens"


class _Ways(NamedTuple):
    command: str
    http: str
    library: str
    others: tuple[str, ...] = ()
    """Commands that say something else of the same."""


_API = "/api/v1"
_WAYS = {
    Do.APPROVE: _Ways(
        "approve {s} {a}", "POST /sessions/{S}/approvals/{A}", "db.approve({session!r}, {argument!r}, by=...)",
        ("approve {s} {a} --edit ARGUMENTS", "reject {s} {a}"),
    ),
    Do.ANSWER: _Ways(
        "answer {s} {a} VALUE", "POST /sessions/{S}/approvals/{A}", "db.answer({session!r}, {argument!r}, ..., by=...)",
        ("reject {s} {a}",),
    ),
    Do.RESOLVE: _Ways(
        "resolve {s} {a} --done RESULT", "POST /sessions/{S}/effects/{A}/resolve",
        "db.session({session!r}).resolve({argument!r}, done=..., by=...)",
        ("resolve {s} {a} --retry", "resolve {s} {a} --abort"),
    ),
    Do.RETRY: _Ways("retry {s}", "POST /sessions/{S}/retry", "perdure.fleet.status.steer(db, [{session!r}], 'retry')"),
    Do.UNPAUSE: _Ways(
        "unpause {s}", "POST /sessions/{S}/unpause", "perdure.fleet.status.steer(db, [{session!r}], 'unpause')"
    ),
    Do.UNHOLD: _Ways(
        "unpause --agent {a}", "POST /fleet/hold", "perdure.fleet.board.board_of(db).hold({argument!r}, False)"
    ),
    Do.WORKER: _Ways("worker APP", "", "perdure.start_worker([agent], store)"),
    Do.RUN: _Ways("resume APP {s}", "POST /sessions/{S}/runs", "agent.run(db, session={session!r})"),
    Do.START: _Ways("run APP {s}", "POST /sessions", "agent.run(db, session={session!r})"),
    Do.MESSAGE: _Ways("post {s} MESSAGE", "POST /sessions/{S}/messages", "db.post({session!r}, ...)"),
    Do.WITHDRAW: _Ways(
        "inbox {s} --withdraw {a}", "POST /sessions/{S}/inbox/{A}/withdraw",
        "db.withdraw({session!r}, {argument!r}, by=...)", ("inbox {s} --edit {a} --message TEXT",),
    ),
    Do.SUBMIT: _Ways("submit {s} --agent {a}", "POST /sessions", "perdure.submit(db, {session!r}, agent={argument!r})"),
    Do.OUTCOME: _Ways(
        "outcome {s} {a} RESULT", "POST /sessions/{S}/effects/{A}/outcome",
        "db.post_outcome({session!r}, {argument!r}, ...)",
    ),
    Do.REVIVE: _Ways("revive {s}", "", "db.revive({session!r})"),
    Do.REOPEN: _Ways(
        "run APP {s} --reopen", "POST /sessions/{S}/runs", "db.session({session!r}, reopen=True)",
    ),
    Do.PROGRAM: _Ways("", "", "db.session({session!r})"),
    Do.PROGRAM_REOPENS: _Ways("", "", "db.session({session!r}, reopen=True)"),
}  # fmt: skip
_ON_BRANCH = {
    Do.MESSAGE: _Ways(
        "run APP {s} MESSAGE --branch {b}",
        "POST /sessions/{S}/runs",
        "perdure.agent.branching_off.say_on(db, {session!r}, {branch!r}, ...)",
    ),
    Do.RUN: _Ways(
        "resume APP {s} --branch {b} --effects {a}",
        "POST /sessions/{S}/runs",
        "perdure.run_on(db, agent, {session!r}, {branch!r}, effects={argument!r})",
    ),
    Do.PROGRAM: _WAYS[Do.PROGRAM]._replace(library="db.session({session!r}, branch={branch!r})"),
    Do.RESOLVE: _WAYS[Do.RESOLVE]._replace(
        command="resolve {s} {a} --branch {b} --done RESULT",
        library="db.session({session!r}, branch={branch!r}).resolve({argument!r}, done=..., by=...)",
        others=("resolve {s} {a} --branch {b} --retry", "resolve {s} {a} --branch {b} --abort"),
    ),
}
"""How it is done on another branch than main, where that differs."""


class Action(NamedTuple):
    """One thing to do about one session."""

    name: Do
    session: str
    argument: str = ""
    """Of an approval or an effect its id, of a message its key; of a hold or a submission the agent; of a run of a
    branch what becomes of calls."""
    branch: str = MAIN
    store: str = ""
    """Which database that is about, as its URL; "": the one that is spoken of."""

    @property
    def command(self) -> str:
        """What to type; "" when that is nothing. Words in capitals are yours to fill in.

        >>> Action(Do.APPROVE, "my trip", "ap_1").command, Action(Do.PROGRAM, "t").command
        ("perdure approve 'my trip' ap_1", '')
        """
        return typed(found, self.store) if (found := self._spelled(self._ways.command)) else ""

    @property
    def others(self) -> tuple[str, ...]:
        """What to type instead, where there is a choice.

        >>> Action(Do.RESOLVE, "t", "ef_1").others
        ('perdure resolve t ef_1 --retry', 'perdure resolve t ef_1 --abort')
        """
        return tuple(typed(self._spelled(way), self.store) for way in self._ways.others)

    @property
    def http(self) -> str:
        """The call of the HTTP API; "" when it has none.

        >>> Action(Do.RETRY, "a/b").http
        'POST /api/v1/sessions/a%2Fb/retry'
        """
        method, _, path = self._spelled(self._ways.http).partition(" ")
        return f"{method} {_API}{path}" if path else ""

    @property
    def body(self) -> dict[str, Any] | None:
        """What to send with the call of the HTTP API; None when that is nothing. Words in capitals are to be filled in.

        >>> Action(Do.APPROVE, "t", "ap_1").body
        {'status': 'resolved', 'payload': {'approved': True}}
        """
        match self.name:
            case Do.APPROVE:
                return {"status": "resolved", "payload": {"approved": True}}
            case Do.ANSWER:
                return {"status": "resolved", "payload": {"answer": "VALUE"}}
            case Do.RESOLVE:
                return {"verdict": "done", "result": "RESULT", "branch": self.branch}
            case Do.UNHOLD:
                return {"agent": self.argument, "on": False}
            case Do.RUN:
                return {"branch": self.branch, **({} if self.branch == MAIN else {"effects": self.argument})}
            case Do.REOPEN:
                return {"branch": self.branch, "reopen": True}
            case Do.START:
                return {"agent": "AGENT", "id": self.session}
            case Do.MESSAGE:
                return {"message": "MESSAGE", **({} if self.branch == MAIN else {"branch": self.branch})}
            case Do.WITHDRAW:
                return {"by": "NAME"}
            case Do.SUBMIT:
                return {"agent": self.argument, "id": self.session}
            case Do.OUTCOME:
                return {"result": "RESULT"}
            case _:
                return None

    @property
    def library(self) -> str:
        """The call of the library; for people to read.

        >>> Action(Do.MESSAGE, "t").library
        "db.post('t', ...)"
        """
        return self._spelled(self._ways.library)

    @property
    def here(self) -> str:
        """The same for whoever reads it: as a command, an HTTP call or a library call; what has no other, as the last.

        >>> Action(Do.MESSAGE, "t").here
        "db.post('t', ...)"
        """
        return {"shell": self.command, "http": self.http, "program": ""}[door()] or self.library

    @property
    def _ways(self) -> _Ways:
        return _ON_BRANCH.get(self.name, _WAYS[self.name]) if self.branch != MAIN else _WAYS[self.name]

    def _spelled(self, way: str) -> str:
        quoted = {"s": self.session, "a": self.argument, "b": self.branch}
        sent = {"S": self.session, "A": self.argument}
        return way.format(
            session=self.session, argument=self.argument, branch=self.branch,
            **{k: as_word(v) for k, v in quoted.items()}, **{k: quote(v, safe="") for k, v in sent.items()},
        )  # fmt: skip
