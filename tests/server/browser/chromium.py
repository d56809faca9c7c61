"""Debian's Chromium for tests: found, or installed when it is missing and that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-gpu"]
# Fonts, too: without one, pictures show boxes.
PACKAGES = ["chromium", "fonts-inter", "fonts-jetbrains-mono"]


def binary() -> str:
    """The program, installed when it is missing and that is allowed."""
    found = _find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=False, capture_output=True, env=environment)
        found = _find()
    if found is None:
        raise RuntimeError("these tests need Chromium: apt-get install chromium")
    return found


def _find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def launch(playwright: Playwright) -> Browser:
    """A browser without a window."""
    return playwright.chromium.launch(executable_path=binary(), args=ARGUMENTS)
