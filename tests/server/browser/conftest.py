"""What the tests in a browser share: one Chromium, one server with a worker, and pages that must not complain."""

from __future__ import annotations

import os
import random
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

import perdure
from perdure.fleet.board import submit
from tests.server.browser import app, world
from tests.server.browser.chromium import launch
from tests.server.browser.house import TOKEN, House

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

PICTURES = "PERDURE_SCREENSHOTS"
"""When set, pictures of every page are put into docs/screenshots, and there is more to be seen on them."""
WAIT = 30_000
"""Milliseconds that a page may take for anything on a loaded machine."""
expect.set_options(timeout=WAIT)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of this folder; no longer, for its loop keeps others from having one of their own."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[House]:
    """A server with a worker, over the sessions of the story."""
    house = House(tmp_path_factory.mktemp("house"))
    app.LEDGER = str(house.ledger)
    pictures = bool(os.environ.get(PICTURES))
    house.fill(*((world.some, world.story) if pictures else (world.story, world.hostile)))
    try:
        house.serve()
        # A run that fails is not tried again by itself: what is looked at stands still.
        house.work("--tries", "1")
        with traffic(house) if pictures else nullcontext():
            yield house
    finally:
        house.close()


@contextmanager
def traffic(house: House) -> Iterator[None]:
    """People who write all the time, for pictures of a fleet at work."""
    stop = threading.Event()

    def write() -> None:
        with perdure.open(house.url) as db:
            number = 0
            while not stop.wait(random.uniform(0.05, 0.6)):
                number += 1
                name = ("hello-dana", "hello-finn", "hello-goran")[number % 3]
                submit(db, name, f"Good evening, this is message {number}.", agent="support", owner=name[6:])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Visitor:
    """A person with a browser of their own, signed in."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.problems: list[str] = []
        self.context = browser.new_context(base_url=address, **{"viewport": {"width": 1280, "height": 860}, **options})  # type: ignore
        self.context.set_default_timeout(WAIT)
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.goto(f"/?token={TOKEN}")

    def close(self) -> None:
        """Leave; nothing may have gone wrong in the browser."""
        self.context.close()
        assert self.problems == []


@pytest.fixture
def db(house: House) -> Iterator[perdure.Database]:
    """The store of the house."""
    with perdure.open(house.url) as db:
        yield db


@pytest.fixture
def visitor(chromium: Browser, house: House) -> Iterator[Visitor]:
    """One person at the house."""
    visitor = Visitor(chromium, house.address)
    yield visitor
    visitor.close()


@pytest.fixture
def page(visitor: Visitor) -> Page:
    """Their page."""
    return visitor.page
