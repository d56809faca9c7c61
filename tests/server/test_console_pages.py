"""The console's pages without a browser: what is escaped, who may do what, and what odd input comes to."""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import apsw
import pytest

import perdure
import perdure.server.console
from perdure import tool
from perdure.server.auth import FORM_HEADER
from perdure.server.console.rendering import harmless
from perdure.testing.clock import FakeClock
from tests.server.asking import TOKEN, Asking, asking
from tests.server.browser import app, world
from tests.server.browser.places import PAGES
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(perdure.server.console.__file__).parent


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Asking]:
    """The sessions of the story."""
    app.LEDGER = str(tmp_path / "ledger")
    with asking(tmp_path, agents=[app.support]) as found:
        fill(found.db.url, world.story, world.hostile)
        yield found


def fill(url: str, *makers: Any) -> None:
    async def work() -> None:
        async with perdure.open_async(url) as db:
            for make in makers:
                await make(db)

    asyncio.run(work())


def get(console: Asking, path: str, status: int = 200, **headers: str) -> str:
    """A page as text."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = console.http.get(path, headers={"Accept": "text/html", **sent})
    assert answer.status_code == status, (path, answer.status_code, answer.text[:2000])
    return answer.text


def post(console: Asking, path: str, wanted: int = 303, /, **fields: Any) -> str:
    """Send a form; where it leads."""
    answer = console.http.post(path, data=fields, follow_redirects=False)
    assert answer.status_code == wanted, (path, answer.status_code, answer.text[:2000])
    return answer.headers.get("location", answer.text)


def evil(console: Asking) -> str:
    """The id of the session that somebody with bad intent made."""
    return next(row.id for row in console.db.sessions() if row.id.startswith("evil"))


# -- nothing runs that is not ours -----------------------------------------------------------------------------------


def test_no_page_has_script_or_style_in_it_and_all_forbid_both(console: Asking) -> None:
    bad = f"/session?id={quote(evil(console), safe='')}"
    pages = [*PAGES.values(), *(f"{bad}&view={view}" for view in ("chat", "changes", "state", "request", "effects"))]
    for path in pages:
        answer = console.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        text = answer.text
        assert not re.search(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=\s*[\"']|javascript:", _markup(text)
        ), path
        assert "<script>window" not in text, path
        assert "zq" * 7 not in text, f"{path}: a template was run"


def test_the_longest_number_breaks_no_page(tmp_path: Path) -> None:
    longest = (1 << 14_000) - 1
    with asking(tmp_path) as found:
        with perdure.open(found.db.url) as db, db.session("long") as s:
            s.vars["n"] = {"a": [longest]}
            s.messages.append({"role": "user", "content": {"n": [longest]}})
            s.commit()
        for view in ("chat", "changes", "state"):
            assert "<title>long" in get(found, f"/session?id=long&view={view}"), view


def _markup(text: str) -> str:
    """Only tags: what stands between them is text."""
    return "".join(re.findall(r"<[a-z][^>]*>", text))


def test_no_template_trusts_a_value() -> None:
    for template in (HERE / "templates").glob("*.html"):
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", template.read_text()), template.name
    for module in HERE.glob("*.py"):
        assert "Markup" not in module.read_text(), module.name


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x07", "a\rb", "\u202e", "\u2066", "\u200b", "\x9b31m", "\ue000", "\ud800"]
)
def test_what_cannot_be_seen_is_shown(text: str) -> None:
    shown = harmless(text)
    assert shown != text
    assert all(c.isprintable() for c in shown)


def test_what_people_write_stays_as_it_is() -> None:
    for text in ("naïve 東京 🤷🏽‍♀️", "line\nline\ttab", "می‌خواهم", "a <b> & 'c'"):
        assert harmless(text) == text


# -- who may do what -------------------------------------------------------------------------------------------------


def test_a_page_of_somebody_else_changes_nothing(tmp_path: Path) -> None:
    app.LEDGER = str(tmp_path / "ledger")
    with asking(tmp_path, headers={}) as console:
        fill(console.db.url, world.story)
        cookie = console.http.get("/", params={"token": TOKEN}, headers={"Accept": "text/html"}, follow_redirects=False)
        console.http.cookies.update(cookie.cookies)
        form = {"id": "hello-dana", "message": "steal"}
        assert console.http.post("/session/message", data=form).status_code == 403
        assert console.db.look("hello-dana").pending == 0
        page = console.http.get("/session?id=hello-dana").text
        token = re.search(r'name="form-token" content="([^"]+)"', page)
        assert token is not None
        answer = console.http.post(
            "/session/message", data=form, headers={FORM_HEADER: token[1]}, follow_redirects=False
        )
        assert answer.status_code == 303
        assert console.db.look("hello-dana").pending == 1
        # A second click on the same form is the same message; the next page has another one.
        for number, shown in ((2, page), (3, console.http.get("/session?id=hello-dana").text)):
            once = re.search(r'name="once" value="([0-9a-f]+)"', shown)
            assert once is not None
            for _ in range(2):
                sent = {**form, "once": once[1]}
                console.http.post("/session/message", data=sent, headers={FORM_HEADER: token[1]})
            assert console.db.look("hello-dana").pending == number


def test_without_a_token_nobody_sees_anything(tmp_path: Path) -> None:
    with asking(tmp_path, headers={}) as console:
        answer = console.http.get("/", headers={"Accept": "text/html"})
        assert answer.status_code == 401
        assert "Sessions" not in answer.text
        assert console.http.get("/static/login.css").status_code == 200


def test_files_may_be_kept_by_browsers_and_come_with_the_package(console: Asking) -> None:
    for name in ("console.css", "pages.css", "console.js", "theme.js", "icon.svg", "vendor/htmx-2.0.11.min.js"):
        answer = console.http.get(f"/static/{name}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    licences = {path.name for path in (HERE / "static" / "vendor").glob("*-LICENSE")}
    assert licences == {"htmx-LICENSE", "idiomorph-LICENSE"}


# -- odd input -------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_told_as_a_page(console: Asking) -> None:
    assert "there is no session" in unescape(get(console, "/session?id=nobody", 404))
    assert "no branch" in unescape(get(console, "/session?id=trip-42&branch=nowhere", 404))
    assert "choose one from the list" in get(console, "/session", 422)
    assert "whole number" in get(console, "/session?id=trip-42&step=x", 422)
    assert "Step 6" in get(console, "/session?id=trip-42&step=999999"), "a step that is not there yet is the newest"
    part = get(console, "/session/at?id=nobody", 404, HX_Request="true")
    assert "<html" not in part
    assert "That did not work" in part


def test_a_step_that_retention_has_dropped_says_so(console: Asking) -> None:
    with console.db.session("pruned") as s:
        for n in range(8):
            s.vars["n"] = n
            s.commit()
    console.db.prune("pruned", keep_last=2)
    assert "step 2 was dropped by retention" in unescape(get(console, "/session?id=pruned&step=2"))
    assert "Step 8" in get(console, "/session?id=pruned")
    part = get(console, "/session/at?id=pruned&step=2&page=0", HX_Request="true", HX_Target="at")
    assert 'id="at"' in part, "the place for the next step would be lost"


def test_names_with_any_characters_survive_a_form(console: Asking) -> None:
    name = evil(console)
    console.db.post(name, "hello")
    page = get(console, f"/session?id={quote(name, safe='')}")
    assert quote(name, safe="") in page
    page = post(console, "/bulk", 200, do="cancel", session=quote(name, safe=""))
    assert "Cancel 1 session" in page
    post(console, "/bulk/do", do="cancel", session=quote(name, safe=""), by="ana")
    assert console.db.look(name).pending == 2


def test_nothing_is_done_to_all_sessions_by_mistake(console: Asking) -> None:
    assert "no session is selected" in post(console, "/bulk", 422, do="cancel")
    assert "no session is selected" in post(console, "/bulk/do", 422, do="cancel", by="ana")
    assert all(row.pending == 0 for row in console.db.sessions())


def test_all_calls_in_doubt_of_many_sessions_are_settled_alike(console: Asking) -> None:
    page = post(console, "/bulk", 200, do="resolve", status="in_doubt")
    assert "Resolve 1 session?" in page
    assert console.db.look("parcel-1204").status == "in_doubt"
    assert "made again, or given up" in post(console, "/bulk/do", 422, do="resolve", status="in_doubt", by="ana")
    post(console, "/bulk/do", do="resolve", status="in_doubt", verdict="abort", by="ana")
    assert "The parcel" in str(_settled(console, "parcel-1204"))


def _settled(console: Asking, session: str) -> Any:
    """The last message once the session rests: this server runs it on, since there is no worker."""
    end = time.monotonic() + 60
    while console.db.look(session).status != "idle":
        assert time.monotonic() < end, console.db.look(session)
        time.sleep(0.05)
    return console.db.read(session).plain()["messages"][-1]


def test_a_decision_needs_a_name_and_is_taken_once(console: Asking) -> None:
    page = get(console, "/approvals")
    approval = re.search(r'name="approval" value="(ap_[0-9a-f]+)"', page)
    assert approval is not None
    form = {"session": "refund-8847", "approval": approval[1], "do": "reject"}
    assert "records who took it" in post(console, "/approvals", 422, **form)
    post(console, "/approvals", **form, by="ana", reason="no")
    assert "decided already" in post(console, "/approvals", 409, **form, by="ben")


def test_changed_arguments_must_be_an_object(console: Asking) -> None:
    approval = re.search(r'name="approval" value="(ap_[0-9a-f]+)"', get(console, "/approvals"))
    assert approval is not None
    form = {"session": "refund-8847", "approval": approval[1], "do": "approve", "by": "ana"}
    assert "not JSON" in post(console, "/approvals", 422, **form, args="{")
    assert "an object" in post(console, "/approvals", 422, **form, args="[1]")


# -- the store -------------------------------------------------------------------------------------------------------


def test_what_was_changed_in_the_store_is_found(console: Asking) -> None:
    path = console.db.url.removeprefix("sqlite:///")
    with apsw.Connection(path) as raw:
        payload = "update payloads set payload = zeroblob(20) where seq = (select max(seq) from payloads)"
        tables = [row[0] for row in raw.execute("select name from sqlite_master where type = 'table'")]
        if "payloads" not in tables:
            payload = "update commits set digest = zeroblob(32) where seq = (select min(seq) from commits)"
        raw.execute(payload)
    post(console, "/store/verify")
    end = time.monotonic() + 60
    while "of" in (said := get(console, "/store")) and "Reading and checking" in said:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert "not as written" in said


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_every_page_is_there_on_other_stores_too(tmp_path: Path, kind: str) -> None:
    app.LEDGER = str(tmp_path / "ledger")
    with asking(tmp_path, kind, agents=[app.support]) as console:
        fill(url_of(kind, tmp_path), world.story)
        for path in PAGES.values():
            get(console, path)
        page = get(console, "/session?id=trip-42&branch=cheaper")
        assert "half the budget" in page


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_store_without_a_board_has_pages_as_well(tmp_path: Path, kind: str) -> None:
    with asking(tmp_path, kind) as console:
        assert "No sessions yet" in get(console, "/")
        assert "no board for a fleet" in get(console, "/fleet")
        assert "Nothing waits for agreement" in get(console, "/approvals")
        assert "Nothing is in doubt" in get(console, "/in-doubt")
        assert "What it promises" in get(console, "/store")


def test_the_store_counts_only_what_a_sweep_removes(tmp_path: Path) -> None:
    clock = FakeClock()
    with asking(tmp_path, clock=clock) as console:
        for name in ("gone", "kept"):
            console.db.create(name, agent="desk", ttl=10)
        console.db.post("kept", "in time")
        clock.advance(11_000)
        console.db.post("gone", "too late")
        told = get(console, "/session?id=gone", 410)
        assert re.search(r"has expired: perdure revive gone --store \S+ brings it back", told)
        assert "The time of 1 session has run out: the next sweep removes it." in get(console, "/store")
        assert console.db.sweep().removed == 1
        assert "No session's time has run out." in unescape(get(console, "/store"))


def test_nothing_is_said_of_calls_that_are_being_made_where_none_is_in_doubt(tmp_path: Path) -> None:
    with asking(tmp_path) as console:
        seen: list[str] = []

        @tool
        def look_meanwhile() -> None:
            seen.append(get(console, "/in-doubt"))

        with console.db.session("s") as s:
            s.call(look_meanwhile)
        (page,) = seen
        assert "No session stands still because of a call whose outcome nobody knows." in page
        assert "has an outcome" not in page


def test_an_inbox_is_counted_without_what_was_taken_back(tmp_path: Path) -> None:
    with asking(tmp_path) as console:
        with console.db.session("s") as s:
            s.commit()
        console.db.wake("s", delay="2h", key="w")
        assert "1 input waiting" in get(console, "/")
        console.db.cancel_wake("s", "w")
        assert "waiting" not in get(console, "/").partition("<table")[2]
        assert "Inbox" not in get(console, "/session?id=s").partition("<main")[2]
