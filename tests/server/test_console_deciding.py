"""Decisions from the console's pages as a browser sends them: what was asked for is what is done, to the character."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from tests.server.asking import Asking, asking
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 60.0


@tool(approve=True)
def send(to: str, body: str) -> list[str]:
    """Send a letter."""
    return [to, body]


@tool
def choose(schema: dict[str, Any], ctx: perdure.Context) -> list[Any]:
    """Ask a person."""
    return [ctx.ask("Which?", schema=schema)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Asking]:
    """A console over an empty store."""
    with asking(tmp_path) as found:
        yield found


class Form(HTMLParser):
    """The fields of the first form that decides, as a browser would send them if nobody touched them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.options: dict[str, str] = {}
        self._inside = False
        self._text = self._option = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("action") == "/approvals"
        if not self._inside:
            return
        if tag == "input":
            self.fields[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self._text = given["name"]
            self.fields[self._text] = ""
        elif tag == "option":
            self._option = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._text:
            # A browser leaves a first line break out, and sends others as two characters.
            self.fields[self._text] = self.fields[self._text].removeprefix("\n").replace("\n", "\r\n")
            self._text = ""
        elif tag == "option":
            self._option = ""

    def handle_data(self, data: str) -> None:
        if self._text:
            self.fields[self._text] += data
        elif self._option:
            self.options[data] = self._option


def form(desk: Asking) -> Form:
    """What waits."""
    return Form(desk.http.get("/approvals").text)


def decide(desk: Asking, do: str, fields: dict[str, str], **more: str) -> str:
    """Send the form; where it leads."""
    answer = desk.http.post("/approvals", data={**fields, "by": "ana", "do": do, **more}, follow_redirects=False)
    assert answer.status_code == 303, answer.text[-2000:]
    return answer.headers["location"]


def call(desk: Asking, what: Any, /, **args: Any) -> Any:
    """What a call returns, or None while somebody has to decide."""
    with desk.db.session("s") as s:
        try:
            return s.call(what, **args)
        except perdure.CallError:
            return None


@pytest.mark.parametrize(
    "body",
    ["Dear Zoë,\n\nyours\n" * 300, "a\u200bb\u202ec\x7f\U000e0041\ufeff", "</textarea>\n&amp; \\u200b", "x" * 40_000],
    ids=["long", "unseen", "markup", "huge"],
)
def test_what_is_agreed_to_is_the_call_as_it_was_asked(desk: Asking, body: str) -> None:
    assert call(desk, send, to="zoe", body=body) is None
    decide(desk, "approve", form(desk).fields)
    assert call(desk, send, to="zoe", body=body) == ["zoe", body]


def test_what_is_not_changed_stays_as_it_was_also_where_it_cannot_be_seen(desk: Asking) -> None:
    body = "a\u200bb\u202e 東京\n"
    assert call(desk, send, to="zoe", body=body) is None
    found = form(desk).fields
    assert found["args"].count("zoe") == 1
    decide(desk, "approve", found, args=found["args"].replace("zoe", "ben"))
    assert call(desk, send, to="zoe", body=body) == ["ben", body]


def test_arguments_that_are_not_shown_whole_cannot_be_changed_there(desk: Asking) -> None:
    assert call(desk, send, to="zoe", body="x" * 40_000) is None
    page = desk.http.get("/approvals").text
    assert "too long to be shown whole" in page
    assert "args" not in form(desk).fields
    (one,) = desk.get("/approvals")["items"]
    assert one["metadata"]["truncated"] == [{"path": "/args/body", "kind": "text", "size": 40_000}]


def test_a_text_that_reads_like_a_number_is_a_text(desk: Asking) -> None:
    schema = {"type": "string"}
    assert call(desk, choose, schema=schema) is None
    decide(desk, "answer", form(desk).fields, answer="8847")
    assert call(desk, choose, schema=schema) == ["8847"]


@pytest.mark.parametrize(
    "value", ["1", 1, "null", "two\u200b  words", "x" * 300], ids=["digit", "number", "word", "unseen", "long"]
)
def test_what_is_chosen_is_one_of_the_choices(desk: Asking, value: Any) -> None:
    schema = {"enum": ["other", value]}
    assert call(desk, choose, schema=schema) is None
    found = form(desk)
    decide(desk, "answer", found.fields, answer=list(found.options.values())[1])
    assert call(desk, choose, schema=schema) == [value]


def test_an_answer_of_any_shape_is_no_fault_of_the_server(desk: Asking) -> None:
    assert call(desk, choose, schema={}) is None
    decide(desk, "answer", form(desk).fields, answer="[" * 100_000)
    assert call(desk, choose, schema={}) == ["[" * 100_000]


def test_a_decision_that_was_taken_is_not_told_as_an_error_when_nobody_can_go_on_now(tmp_path: Path) -> None:
    agent = Agent("desk", model=ScriptedModel(["hello"]), tools=[send])
    with asking(tmp_path, agents=[agent]) as desk:
        desk.db.create("s", agent="desk")
        assert call(desk, send, to="zoe", body="hi") is None
        # As many runs are under way as there may be.
        desk.app.state.ctx.runs._most = 0
        assert "It is recorded, but" in desk.http.get(decide(desk, "approve", form(desk).fields)).text
        assert call(desk, send, to="zoe", body="hi") == ["zoe", "hi"]


def test_nobody_is_promised_that_a_session_goes_on_whose_run_may_fail(tmp_path: Path) -> None:
    known = {"R1": 80}

    @tool(approve=True, facts=lambda room: known[room])
    def book(room: str) -> str:
        """Book a room."""
        return f"booked {room}"

    agent = Agent("desk", model=ScriptedModel([calls(("book", {"room": "R1"})), "done"]), tools=[book])
    agent.run_sync(url_of("sqlite", tmp_path), session="s", message="book")
    known.clear()
    with asking(tmp_path, agents=[agent]) as desk:
        told = desk.http.get(decide(desk, "approve", form(desk).fields)).text
        assert "Approved. This server runs the session now: its page tells how that goes." in told


def test_tools_that_take_their_time_do_not_keep_pages_from_being_shown(desk: Asking) -> None:
    assert call(desk, send, to="zoe", body="hi") is None
    done = threading.Event()

    async def work() -> None:
        # Where tools run that are plain functions.
        for _ in range(100):
            asyncio.get_running_loop().run_in_executor(None, done.wait)

    assert desk.http.portal is not None
    desk.http.portal.call(work)
    try:
        with ThreadPoolExecutor() as pool:
            try:
                for path in ("/session?id=s", "/session?id=s&view=effects", "/fleet", "/store", "/session/branch?id=s"):
                    assert pool.submit(desk.http.get, path).result(LIMIT).status_code == 200
                pool.submit(decide, desk, "reject", form(desk).fields).result(LIMIT)
            finally:
                done.set()
    finally:
        done.set()


def test_a_check_that_breaks_off_has_an_end(desk: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(**_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(desk.app.state.ctx.db, "verify", broken)
    assert desk.http.post("/store/verify").status_code == 200
    assert "could not be ended" in desk.http.get("/store").text
