"""News on a page that somebody is using: they take nothing away, and a page says when it gets none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

import perdure
from perdure import tool
from perdure.fleet.board import submit
from tests.server.browser.house import TOKEN, House, until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.server.browser.conftest import Visitor

# A browser lets a request or two pass after it was told to catch them.
ASKED = "fetch('/session/at?id=walk', { cache: 'no-store' })"


@tool
def agree(ctx: perdure.Context) -> bool:
    """Ask a person."""
    return bool(ctx.ask("Shall the house be sold?", schema={"type": "boolean"}))


def test_an_answer_that_was_chosen_stays_chosen_when_the_page_changes(
    house: House, db: perdure.Database, page: Page
) -> None:
    with pytest.raises(perdure.CallError), db.session("house-sale") as s:
        s.call(agree)
    page.goto("/approvals")
    card = page.locator("article").filter(has=page.get_by_role("link", name="house-sale", exact=True))
    card.get_by_label("Your answer").select_option("no")
    submit(db, "next-door", "I want my money back for 8847, please.", agent="support", owner="ben")
    expect(page.get_by_role("link", name="next-door")).to_be_visible()
    expect(card.get_by_label("Your answer")).to_have_value("no")
    card.get_by_label("Your name").fill("Rosa")
    card.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("status")).to_contain_text("Answered")
    with db.session("house-sale") as s:
        assert s.call(agree) is False


def test_a_page_that_nobody_looks_at_has_no_connection_and_catches_up_when_somebody_does(
    house: House, db: perdure.Database, page: Page
) -> None:
    def look(hidden: str) -> None:
        page.evaluate(
            "hidden => { Object.defineProperty(document, 'hidden', {get: () => hidden === 'yes', configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    with page.expect_event("request", lambda r: "/live" in r.url):
        page.goto("/?owner=unseen")
    with page.expect_event("requestfailed", lambda r: "/live" in r.url):
        look("yes")
    submit(db, "unseen-1", "Hello", agent="support", owner="unseen")
    until(lambda: db.look("unseen-1").status == "idle", house.said)
    look("no")
    expect(page.get_by_role("link", name="unseen-1")).to_be_visible()
    expect(page.locator("#stale")).to_be_hidden()


def test_news_that_cannot_be_had_leave_the_page_as_it_is_until_they_can(
    house: House, db: perdure.Database, visitor: Visitor
) -> None:
    page = visitor.page
    page.goto("/?owner=later")
    page.route("**/*", lambda route: route.fulfill(status=503, body="no"))
    until(lambda: page.evaluate(f"{ASKED}.then((answer) => answer.status)") == 503)
    submit(db, "later-1", "Hello", agent="support", owner="later")
    expect(page.locator("#stale")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_count(5)
    expect(page.locator("#list")).to_be_visible()
    page.unroute("**/*")
    expect(page.get_by_role("link", name="later-1")).to_be_visible()
    expect(page.locator("#stale")).to_be_hidden()
    assert all("503" in problem for problem in visitor.problems), visitor.problems
    visitor.problems.clear()


def test_a_page_says_that_the_server_is_gone_and_can_still_be_walked_through(chromium: Browser, tmp_path: Path) -> None:
    house = House(tmp_path)
    with perdure.open(house.url) as db, db.session("walk") as s:
        for n in range(3):
            s.vars["n"] = n
            s.commit()
    context = chromium.new_context()
    try:
        house.serve(app=False)
        page = context.new_page()
        page.goto(f"{house.address}/session?id=walk&token={TOKEN}")
        expect(page.locator("#at")).to_contain_text("Step 3")
        page.route("**/session/at**", lambda route: route.abort())
        until(lambda: page.evaluate(f"{ASKED}.then(() => false, () => true)"))
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#stale")).to_be_visible()
        page.unroute("**/session/at**")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#at")).to_contain_text("Step 1")
        expect(page.locator("#stale")).to_be_hidden()
        page.goto(f"{house.address}/session?id=walk")
        expect(page.locator("#stale")).to_be_hidden()
        house.close()
        expect(page.locator("#stale")).to_be_visible()
    finally:
        context.close()
        house.close()
