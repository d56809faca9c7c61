"""A branch run on over HTTP by a real server: main's inbox stays main's, and the world changes only as was asked."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import perdure
from perdure.agent.models import text_of
from tests.server.asking import API, BEARER
from tests.server.browser import app
from tests.server.listening import LIMIT, serving, until
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

S = "/sessions/s"


class Desk:
    """A server with the support desk, its database and its ledger."""

    def __init__(self, base: str, db: perdure.Database, ledger: Path) -> None:
        self._http = httpx.Client(base_url=base + API, headers=BEARER, timeout=LIMIT)
        self.db = db
        self.ledger = ledger

    def post(self, path: str, body: Any, status: int = 202) -> Any:
        """What a path answers."""
        answer = self._http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def insist(self, path: str, body: Any, status: int) -> Any:
        """The same, once whoever writes the session right now has let go of it."""

        def asked() -> httpx.Response | None:
            answer = self._http.post(path, json=body)
            kind = answer.json().get("type")
            return None if kind == "urn:perdure:error:busy" or answer.json().get("started") is False else answer

        answer: httpx.Response = until(asked)
        assert answer.status_code == status, answer.text
        return answer.json()

    def run(self, branch: str, **body: Any) -> None:
        """Have a branch run on."""
        assert self.insist(f"{S}/runs", {"branch": branch, **body}, 202)["started"] is True

    def fork(self, name: str, **body: Any) -> None:
        """Start a branch where the session had said hello."""
        self.insist(f"{S}/branches", {"name": name, "at": "1", **body}, 201)

    def failed(self, branch: str) -> None:
        """Wait until the agent has given up on a branch, after its calls."""

        def over() -> bool:
            read = self.db.read("s", branch=branch)
            return read.checkpoint.status == "failed" and read.messages[-1]["role"] == "tool"

        until(over, lambda: self.db.read("s", branch=branch).messages)

    def inbox(self) -> int:
        """How many messages wait."""
        return self._http.get(S).json()["inbox"]

    def approvals(self) -> list[Any]:
        """What waits for agreement."""
        return self._http.get(f"{S}/approvals").json()["items"]

    def done(self) -> list[str]:
        """What was really done: its kind and its order."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [" ".join(line.split()[:2]) for line in lines]

    def words(self, branch: str) -> str:
        """What was said last on a branch."""
        return text_of(self.db.read("s", branch=branch).messages[-1])

    def answered(self, branch: str, words: str) -> None:
        """Wait until a branch ends with these words."""
        until(lambda: words in self.words(branch), lambda: self.db.read("s", branch=branch).messages)

    def close(self) -> None:
        """Close the client."""
        self._http.close()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A session that has said hello, a branch from there, and then a case on main whose order is not found."""
    with _desk(tmp_path, monkeypatch) as made:
        yield made


@contextmanager
def _desk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    ledger, url = folder / "ledger", url_of("sqlite", folder)
    monkeypatch.setenv("CONSOLE_LEDGER", str(ledger))
    monkeypatch.setattr(app, "LEDGER", str(ledger))
    assert app.support.run_sync(url, session="s", message="hello").ok
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.fork("b")
        app.support.run_sync(url, session="s", message="Where is 8847?")
        with serving(url, folder, str(Path(app.__file__))) as server:
            made = Desk(server.base, db, ledger)
            try:
                yield made
            finally:
                made.close()


def test_what_is_said_on_a_branch_is_answered_there_and_the_inbox_stays_with_main(desk: Desk):
    desk.db.post("s", "for main alone")
    main = desk.db.read("s").checkpoint.id
    desk.run("b", message="only here")
    desk.answered("b", "You said: only here")
    assert desk.inbox() == 1
    assert desk.db.read("s").checkpoint.id == main
    assert "for main alone" not in str(desk.db.read("s", branch="b").plain())
    # The other way round: what main is asked does not reach the branch.
    desk.run("main")
    desk.answered("main", "You said: for main alone")
    assert desk.inbox() == 0
    assert desk.words("b") == "You said: only here"


def test_a_branch_is_run_on_with_what_was_said_there_before_and_remembers_its_instructions(desk: Desk):
    desk.db.post("s", "for main alone")
    edits = [{"op": "add", "path": "/messages/-", "value": {"role": "user", "content": "Where is 8847?"}}]
    desk.fork("better", edits=edits)
    desk.run("better", effects="dry", instructions=app.BETTER)
    desk.answered("better", "comes on Friday")
    desk.run("better", effects="dry", message="Once more: Where is 8847?")
    until(lambda: sum("comes on Friday" in text_of(m) for m in desk.db.read("s", branch="better").messages) == 2)
    assert desk.done() == ["case 8847"]
    assert desk.inbox() == 1


def test_on_a_branch_effects_are_made_as_was_asked(desk: Desk):
    desk.run("b", message="Where is 1111?", effects="dry")
    desk.failed("b")
    assert desk.done() == ["case 8847"], "a dry run has changed the world"
    desk.fork("a")
    # As on the command line and in the library, where nobody says otherwise.
    desk.run("a", message="Where is 1111?")
    desk.failed("a")
    assert desk.done() == ["case 8847"], "a run of a branch has changed the world unasked"
    desk.fork("c")
    desk.run("c", message="Where is 8847?", effects="reuse")
    desk.failed("c")
    assert desk.done() == ["case 8847"], "what main had done was done again"
    desk.fork("d")
    desk.run("d", message="Where is 2222?", effects="reuse")
    desk.failed("d")
    assert desk.done() == ["case 8847", "case 2222"]


def test_an_approval_on_a_branch_is_given_there(desk: Desk):
    desk.run("b", message="I want my money back for 8847", effects="reuse")
    waiting = until(desk.approvals)
    assert waiting[0]["metadata"]["branch"] == "b"
    assert "is open" in desk.insist(f"{S}/runs", {"branch": "b", "message": "and now?"}, 409)["detail"]
    decision = {"status": "resolved", "payload": {"approved": True}, "by": "eve"}
    desk.post(f"{S}/approvals/{waiting[0]['id']}", decision, 200)
    desk.run("b", effects="reuse")
    desk.answered("b", "Done: ")
    assert desk.done() == ["case 8847", "refund ORD-2024-8847"]


def test_a_key_and_a_branch_that_is_not_there_are_refused(desk: Desk):
    assert "inbox" in desk.post(f"{S}/runs", {"branch": "b", "message": "x", "key": "k"}, 422)["detail"]
    assert "fork it first" in desk.post(f"{S}/runs", {"branch": "nowhere", "message": "x"}, 422)["detail"]
    for branch in ("b", "main"):
        begins = "there is no session 'nobody': POST /api/v1/sessions begins one, with its agent and owner"
        assert desk.post("/sessions/nobody/runs", {"branch": branch}, 404)["detail"] == begins
