"""What people come for: a failing step found and tried another way, an agreement given, a list that stays true."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from playwright.sync_api import expect

import perdure
from perdure.fleet.board import submit
from tests.server.browser.app import BETTER
from tests.server.browser.conftest import Visitor
from tests.server.browser.house import House, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_a_failing_step_is_found_and_a_branch_before_it_succeeds_while_the_world_stays_as_it_is(
    house: House, db: perdure.Database, page: Page
) -> None:
    submit(db, "journey", "Where is 8847?", agent="support", owner="ana")
    until(lambda: db.look("journey").status == "failed", house.said)
    before = house.lines()
    began = time.monotonic()

    page.goto("/")
    page.get_by_role("navigation", name="Status").get_by_role("link", name=re.compile("Failed")).click()
    page.get_by_role("link", name="journey").click()
    why = page.get_by_label("Why it is where it is")
    expect(why).to_contain_text("the model gave up")
    why.get_by_role("link", name="Go to the failing step").click()
    expect(page.locator("#at")).to_contain_text("there is no order 8847")
    page.locator("#branch-before").click()
    page.get_by_label("Instructions").fill(BETTER)
    page.get_by_role("button", name="Branch and run on").click()
    expect(page.locator("#at")).to_contain_text("Your order is shipped with Northway")
    expect(page.locator("#at .run")).to_contain_text("done")
    print(f"the journey took {time.monotonic() - began:.1f} s")

    assert house.lines() == before, "the branch changed the world"
    assert db.read("journey").step == 6, "the branch it came from was changed"
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("region", name="try-4-1")).to_contain_text("comes on Friday")


def test_an_agreement_from_the_inbox_lets_a_parked_agent_go_on(house: House, db: perdure.Database, page: Page) -> None:
    submit(db, "agree", "I want my money back for 8847, please.", agent="support", owner="ben")
    page.goto("/approvals")
    # It appears by itself, on the page that is open already.
    card = page.locator("article").filter(has=page.get_by_role("link", name="agree", exact=True))
    expect(card).to_contain_text("249.0")
    expect(card).to_contain_text("refunded so far")
    assert not any("refund ORD-2024-8847" in line for line in house.lines())
    card.get_by_label("Reason").fill("it is broken")
    card.get_by_text("Change the arguments").click()
    submit(db, "agree-too", "And my money back for 8847 as well.", agent="support", owner="ben")
    expect(page.get_by_role("link", name="agree-too")).to_be_visible()
    expect(card.get_by_label("Reason")).to_have_value("it is broken")
    expect(card.get_by_label("Arguments as JSON")).to_be_visible()
    card.get_by_label("Your name").fill("Rosa")
    card.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status")).to_contain_text("Approved")
    until(lambda: "Done:" in str(db.read("agree").plain()["messages"][-1]), house.said)
    assert sum("refund ORD-2024-8847 249.0" in line for line in house.lines()) == 1
    page.goto("/session?id=agree&view=effects")
    expect(page.get_by_text("approval used by Rosa: it is broken")).to_be_visible()
    page.goto("/approvals?id=agree")
    expect(page.get_by_text("Nothing waits for agreement")).to_be_visible()


def test_arguments_can_be_changed_and_a_refusal_has_a_reason(house: House, db: perdure.Database, page: Page) -> None:
    for name in ("less", "never"):
        submit(db, name, "I want my money back for 8847.", agent="support")
        until(lambda name=name: db.look(name).status == "waiting_approval", house.said)
    page.goto("/approvals?id=less")
    page.get_by_text("Change the arguments").click()
    page.get_by_label("Arguments as JSON").fill('{"order": "ORD-2024-8847", "amount": 60.0}')
    page.get_by_label("Your name").fill("Rosa")
    page.get_by_role("button", name="Approve").click()
    until(lambda: db.look("less").status == "idle", house.said)
    assert any("refund ORD-2024-8847 60.0" in line for line in house.lines())
    page.goto("/approvals?id=never")
    page.get_by_label("Reason").fill("no such order")
    page.get_by_role("button", name="Reject").click()
    until(lambda: "no such order" in str(db.read("never").plain()["messages"][-1]), house.said)


def test_what_is_in_doubt_is_settled_and_the_session_goes_on(house: House, db: perdure.Database, page: Page) -> None:
    submit(db, "doubt", "Please send 1204 again.", agent="support")
    until(lambda: db.look("doubt").status == "in_doubt", house.said)
    page.goto("/session?id=doubt")
    page.get_by_role("link", name="Settle it").click()
    expect(page.get_by_role("heading", name=re.compile("Did send_parcel"))).to_be_visible()
    page.get_by_label("Its result").fill('{"parcel": "P-1"}')
    page.get_by_label("Your name").fill("Rosa")
    page.get_by_role("button", name="It happened").click()
    until(lambda: "P-1" in str(db.read("doubt").plain()["messages"][-1]["content"]), house.said)
    assert sum("parcel ORD-2024-1204" in line for line in house.lines()) == 2, (
        "once here, once in the story; never again"
    )


def test_two_browsers_see_the_same_without_loading_anything_again(
    house: House, db: perdure.Database, chromium: Browser
) -> None:
    visitors = [Visitor(chromium, house.address) for _ in range(2)]
    for visitor in visitors:
        visitor.page.goto("/?q=seen-by")
        visitor.page.evaluate("window.same = true")
        expect(visitor.page.get_by_text("No session matches")).to_be_visible()
    submit(db, "seen-by-both", "Hello", agent="support", owner="dana")
    for visitor in visitors:
        row = visitor.page.get_by_role("row").filter(has_text="seen-by-both")
        expect(row).to_contain_text("idle")
        assert visitor.page.evaluate("window.same"), "the page was loaded again"
    for visitor in visitors:
        visitor.page.goto("/session?id=seen-by-both")
        visitor.page.evaluate("window.same = true")
    visitors[0].page.get_by_label("Message").fill("And who are you?")
    visitors[0].page.get_by_role("button", name="Send").click()
    for visitor in visitors:
        expect(visitor.page.locator("#at")).to_contain_text("You said: And who are you?")
    assert visitors[1].page.evaluate("window.same"), "the page was loaded again"
    for visitor in visitors:
        visitor.close()


def test_what_is_ticked_stays_ticked_when_the_list_changes(house: House, db: perdure.Database, page: Page) -> None:
    for i in range(2):
        submit(db, f"tick-{i}", "Hello", agent="support", owner="ticker")
        until(lambda i=i: db.look(f"tick-{i}").status == "idle" and not db.look(f"tick-{i}").pending, house.said)
    page.goto("/?owner=ticker")
    page.get_by_label("Select tick-0").check()
    expect(page.locator("#bulk-count")).to_have_text("1 selected")
    submit(db, "tick-2", "Hello", agent="support", owner="ticker")
    expect(page.get_by_role("row").nth(1)).to_contain_text("tick-2")
    expect(page.get_by_label("Select tick-0")).to_be_checked()
    assert page.locator("input[name=session]:checked").count() == 1


def test_many_sessions_are_cancelled_after_a_look_at_which_they_are(
    house: House, db: perdure.Database, page: Page
) -> None:
    for i in range(3):
        submit(db, f"many-{i}", "I want my money back for 8847.", agent="support", owner="crowd")
    until(lambda: all(db.look(f"many-{i}").status == "waiting_approval" for i in range(3)), house.said)
    page.goto("/?owner=crowd")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 3 sessions?")).to_be_visible()
    assert all(db.look(f"many-{i}").pending == 0 for i in range(3)), "the preview did something"
    page.get_by_label("Your name").fill("Rosa")
    page.get_by_role("button", name="Cancel 3 sessions").click()
    expect(page.get_by_role("status")).to_contain_text("Cancel: 3 of 3 sessions")
    until(lambda: all(db.look(f"many-{i}").status == "cancelled" for i in range(3)), house.said)


def test_several_calls_in_doubt_are_settled_alike_after_a_look_at_which_they_are(
    house: House, db: perdure.Database, page: Page
) -> None:
    for i in range(2):
        submit(db, f"parcel-{i}", f"Please send 770{i} again.", agent="support", owner="doubter")
    until(lambda: all(db.look(f"parcel-{i}").status == "in_doubt" for i in range(2)), house.said)
    before = house.lines()
    page.goto("/in-doubt")
    for i in range(2):
        page.get_by_label(f"Select session parcel-{i},").check()
    expect(page.locator("#bulk-count")).to_have_text("2 selected")
    page.get_by_role("button", name="They happened…").click()
    expect(page.get_by_role("heading", name="Resolve 2 sessions?")).to_be_visible()
    expect(page.locator(".preview")).to_contain_text("ORD-2024-7700")
    page.get_by_label("Their result").fill('{"tracking": "T-77"}')
    page.get_by_label("Your name").fill("Rosa")
    page.get_by_role("button", name="Resolve 2 sessions").click()
    expect(page.get_by_role("status")).to_contain_text("Resolve: 2 of 2 sessions")
    expect(page).to_have_url(re.compile("/in-doubt"))
    until(lambda: all("T-77" in str(db.read(f"parcel-{i}").messages[-1]) for i in range(2)), house.said)
    assert house.lines() == before, "what had happened was made again"
