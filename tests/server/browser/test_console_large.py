"""Ten thousand sessions, and one of five thousand steps, stay smooth. Times are printed; they decide nothing."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.server.browser import world
from tests.server.browser.conftest import Visitor
from tests.server.browser.house import House

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Visitor]:
    """Somebody at a store with very much in it."""
    house = House(tmp_path_factory.mktemp("large"))
    house.fill(world.many, world.long)
    try:
        house.serve(app=False)
        visitor = Visitor(chromium, house.address)
        yield visitor
        visitor.close()
    finally:
        house.close()


def test_the_first_page_of_ten_thousand_sessions(large: Visitor) -> None:
    page, took = large.page, list[float]()
    for _ in range(5):
        began = time.monotonic()
        page.goto("/")
        expect(page.get_by_role("row")).to_have_count(51)
        took.append(time.monotonic() - began)
    print(
        f"first page of 10,001 sessions: median {statistics.median(took) * 1000:.0f} ms, at most {max(took) * 1000:.0f}"
    )
    expect(page.get_by_role("navigation", name="Status")).to_contain_text("All 10,001")
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    page.locator("#search").fill("customer-04242")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("link", name="customer-04242")).to_be_visible()


def test_failures_are_grouped_and_lead_to_their_sessions(large: Visitor) -> None:
    page = large.page
    page.goto("/")
    causes = page.get_by_role("region", name="Failures by cause")
    expect(causes).to_contain_text("ModelUnavailable")
    causes.get_by_role("link", name="ContextTooLong").first.click()
    expect(page.get_by_role("row")).not_to_have_count(0)
    page.get_by_role("button", name="Retry…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Retry")
    expect(page.get_by_text("Nothing has been done yet")).to_be_visible()


def test_travelling_through_five_thousand_steps(large: Visitor) -> None:
    page = large.page
    page.goto("/session?id=long")
    expect(page.locator("#travel")).to_have_attribute("max", "5000")
    expect(page.locator("#steps li")).to_have_count(50)
    took = [_to(page, step) for step in (4999, 4998, 4000, 2500, 2499, 1, 2, 3333, 3334, 5000)]
    print(f"a step of 5,000: median {statistics.median(took):.0f} ms, at most {max(took):.0f} ms")
    for view in ("Changes", "State", "Request", "Effects"):
        page.get_by_role("tab", name=view).click()
        expect(page.get_by_role("tab", name=view)).to_have_attribute("aria-selected", "true")
        print(f"{view}: {_to(page, 1234):.0f} ms")
        _to(page, 5000)
    page.get_by_role("tab", name="Conversation").click()
    page.get_by_role("button", name="earlier").click()
    expect(page.locator(".said")).to_have_count(60)


def _to(page: Page, step: int) -> float:
    """Go to a step with the slider; milliseconds until it is shown."""
    page.evaluate(
        """step => { const s = document.querySelector('#travel'); s.value = step;
        s.dispatchEvent(new Event('input', {bubbles: true})); }""",
        step,
    )
    expect(page.locator("#at h2")).to_contain_text(f"Step {step} ")
    return page.evaluate("Number(document.documentElement.dataset.stepMs)")
