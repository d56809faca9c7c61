"""Every page in light, dark and at phone width; with a keyboard alone; without a mistake that axe would find."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.server.browser.conftest import PICTURES, Visitor
from tests.server.browser.house import ROOT, House
from tests.server.browser.places import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

PHONE = {"width": 390, "height": 844}
SERIOUS = ("serious", "critical")
RULES: dict[str, Any] = {
    "light": {"resultTypes": ["violations"]},
    # Only the colours are others.
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]},
    "phone": {"resultTypes": ["violations"]},
}
SHOWN: dict[str, Any] = {
    "light": PAGES,
    "dark": ("sessions", "failing-step", "fleet"),
    "phone": ("sessions", "failing-step", "approvals"),
}
"""Of which pages pictures are put into the documentation."""


@pytest.fixture(scope="module")
def visitors(chromium: Browser, house: House) -> Iterator[dict[str, Visitor]]:
    """Three people: one likes light, one dark, one has a phone."""
    found = {
        "light": Visitor(chromium, house.address, color_scheme="light"),
        "dark": Visitor(chromium, house.address, color_scheme="dark"),
        "phone": Visitor(chromium, house.address, viewport=PHONE, has_touch=True, is_mobile=True),
    }
    yield found
    for visitor in found.values():
        visitor.close()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_fit_to_be_seen(visitors: dict[str, Visitor], name: str) -> None:
    for who, visitor in visitors.items():
        page = visitor.page
        page.goto(PAGES[name])
        if os.environ.get(PICTURES) and name == "fleet":
            # So that its curves have some length.
            page.wait_for_timeout(15_000)
        expect(page.locator("main")).to_be_visible()
        assert not visitor.problems, (who, visitor.problems)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide for {who}"
        found = [v for v in Axe().run(page, options=RULES[who]).response["violations"] if v["impact"] in SERIOUS]
        assert not found, f"{name} for {who}: " + "; ".join(f"{v['id']}: {_spots(v)}" for v in found)
        _picture(page, name, who)


def _spots(violation: dict[str, Any]) -> str:
    return ", ".join(" ".join(str(t) for t in node["target"]) for node in violation["nodes"][:5])


def _picture(page: Page, name: str, who: str) -> None:
    if os.environ.get(PICTURES) and name in SHOWN[who]:
        folder = Path(ROOT) / "docs" / "screenshots"
        folder.mkdir(exist_ok=True)
        page.screenshot(
            path=folder / f"{name}{'' if who == 'light' else '-' + who}.png",
            full_page=name not in ("sessions", "failures"),
        )


def test_dark_and_light_differ_and_the_switch_is_remembered(visitors: dict[str, Visitor]) -> None:
    colours: dict[str, str] = {}
    for who in ("light", "dark"):
        page = visitors[who].page
        page.goto("/")
        colours[who] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours["light"] != colours["dark"]
    page = visitors["dark"].page
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours["light"]
    page.goto("/store")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours["light"]
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") is None


def test_a_session_is_found_travelled_through_and_branched_without_a_mouse(page: Page) -> None:
    press = page.keyboard.press
    page.goto("/")
    press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("order-88")
    expect(page.get_by_role("link", name="refund-8847")).to_have_count(0)
    press("Escape")
    press("j")
    expect(page.get_by_role("link", name="order-8847")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the keyboard is cannot be seen"
    press("Enter")
    expect(page.locator("#at h2")).to_contain_text("Step 6")
    press("ArrowLeft")
    expect(page.locator("#at h2")).to_contain_text("Step 5")
    expect(page.locator("#step-5")).to_have_attribute("aria-current", "step")
    press("j")
    expect(page.locator("#at h2")).to_contain_text("Step 4")
    press("Home")
    expect(page.locator("#at h2")).to_contain_text("Step 1")
    press("End")
    expect(page.locator("#at h2")).to_contain_text("Step 6")
    page.locator("#travel").focus()
    press("ArrowLeft")
    expect(page.locator("#at h2")).to_contain_text("Step 5")
    assert "step=5" in page.url
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    press("b")
    expect(page.get_by_role("heading", name="Branch from step 5")).to_be_visible()
    page.get_by_label("Name of the branch").focus()
    press("Control+a")
    page.keyboard.type("by-hand")
    press("Enter")
    expect(page.locator("#travel-said")).to_contain_text("by-hand")
    press("2")
    expect(page.get_by_role("heading", name="Approvals", level=1)).to_be_visible()


def test_views_of_a_step_are_changed_without_loading_the_page(page: Page) -> None:
    page.goto("/session?id=order-8847&step=4")
    page.evaluate("window.same = true")
    for tab, said in (
        ("Changes", "state.messages[+]"), ("State", "messages"), ("Request", "Exactly what was sent"),
        ("Effects", "find_order"), ("Conversation", "I am opening a case."),
    ):  # fmt: skip
        page.get_by_role("tab", name=tab).click()
        expect(page.locator("#panel")).to_contain_text(said)
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    assert page.evaluate("window.same")
    page.go_back()
    expect(page.get_by_role("tab", name="Effects")).to_have_attribute("aria-selected", "true")


def test_a_check_of_everything_says_that_all_is_well(page: Page) -> None:
    page.goto("/store")
    page.get_by_role("button", name="Check everything").click()
    expect(page.locator("#check")).to_contain_text("Everything is as it was written")


def test_what_somebody_with_bad_intent_wrote_does_nothing(page: Page, visitor: Visitor) -> None:
    page.goto("/")
    page.get_by_role("link", name="evil").click()
    expect(page).to_have_title(re.compile("^evil"))
    expect(page.locator(".session-id")).to_contain_text("⟨U+202E⟩<i>id</i>")
    for view in ("chat", "changes", "state", "request", "effects"):
        page.get_by_role("tab").nth(("chat", "changes", "state", "request", "effects").index(view)).click()
        expect(page.locator("#at")).to_have_attribute("data-view", view)
        if view == "chat":
            expect(page.locator("#panel")).to_contain_text("<script>window.stolen = 1</script>")
            expect(page.locator("#panel")).to_contain_text("296,000 more characters")
            expect(page.locator("#panel")).to_contain_text("⟨ESC⟩]0;owned")
        text = page.locator("main").inner_text()
        assert not set(text) & set("\x1b\x07\u202e\u2066\u200b"), view
        assert page.locator("#panel script, #panel img, #panel b:text-is('bold')").count() == 0
    page.goto("/session/branch?id=" + page.evaluate("new URLSearchParams(location.search).get('id')").replace(" ", "+"))
    assert page.evaluate("window.stolen") is None
    assert "zq" * 7 not in page.locator("main").inner_text(), "a template was run"
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "a long line makes the page wider"
    assert visitor.problems == []
