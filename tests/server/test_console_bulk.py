"""The console without a browser: several calls in doubt settled the same way, after a page that says which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import tool
from tests.server.asking import Asking, asking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@tool(if_unsure="ask")
def charge(order: str) -> Any:
    """Charge an order; the connection drops."""
    raise ConnectionError(order)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Asking]:
    """Three sessions with a call in doubt."""
    with asking(tmp_path) as found:
        for name in ("a", "b", "c"):
            for _ in range(2):
                with pytest.raises((perdure.InDoubt, ConnectionError)), found.db.session(name, owner="ana") as s:
                    s.call(charge, order=f"order {name}")
        yield found


def post(desk: Asking, path: str, wanted: int = 303, **fields: Any) -> str:
    """Send a form; where it leads, or the page."""
    answer = desk.http.post(path, data=fields, follow_redirects=False)
    assert answer.status_code == wanted, (path, answer.status_code, answer.text[:2000])
    return answer.headers.get("location", answer.text)


def doubts(desk: Asking) -> list[str]:
    """The sessions that are in doubt."""
    return sorted(effect["session"] for effect in desk.get("/in-doubt")["items"])


def test_several_are_chosen_on_the_page_of_doubts_and_looked_at_first(desk: Asking) -> None:
    page = desk.http.get("/in-doubt").text
    assert page.count('form="bulk-form" name="session"') == 3
    assert all(f'name="verdict" value="{verdict}"' in page for verdict in ("done", "retry", "abort"))
    page = post(desk, "/bulk", 200, **{"do": "resolve", "from": "in-doubt", "verdict": "done", "session": ["a", "b"]})
    assert "Resolve 2 sessions?" in page
    assert "order a" in page, "it does not say which calls are meant"
    assert '<option value="done" selected>' in page
    assert doubts(desk) == ["a", "b", "c"], "the preview did something"


def test_they_are_recorded_as_done_with_a_result_or_given_up(desk: Asking) -> None:
    fields = {"do": "resolve", "from": "in-doubt", "by": "eve", "session": ["a", "b"]}
    where = post(desk, "/bulk/do", verdict="done", result='{"receipt": 7}', **fields)
    assert where.startswith("/in-doubt?"), "it leads elsewhere than it began"
    assert doubts(desk) == ["c"]
    (effect,) = desk.get("/sessions/a/effects")["items"]
    assert (effect["status"], effect["result"]) == ("done", {"receipt": 7})
    assert post(desk, "/bulk/do", do="resolve", status="in_doubt", verdict="abort", by="eve").startswith("/?")
    (effect,) = desk.get("/sessions/c/effects")["items"]
    assert effect["status"] == "failed"


def test_a_verdict_that_is_none_is_refused(desk: Asking) -> None:
    for verdict in ({}, {"verdict": "maybe"}):
        post(desk, "/bulk/do", 422, do="resolve", session="a", by="eve", **verdict)
    assert doubts(desk) == ["a", "b", "c"]


def test_the_api_records_many_as_done(desk: Asking) -> None:
    body = {"action": "resolve", "verdict": "done", "result": [1], "filter": {"status": "in_doubt"}, "by": "eve"}
    assert desk.post("/bulk", {**body, "dry_run": True})["sessions"] == ["a", "b", "c"]
    assert desk.post("/bulk", body)["changed"] == 3
    assert desk.get("/sessions/b/effects")["items"][0]["result"] == [1]
