"""Pytest's part in ``sabotage``: sees that the copy is what is tested, and that no failing example is made smaller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

COPY = "SABOTAGE_COPY"
"""Names the folder that the library must come from."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before any test is imported: that one fails is all there is to know, not with which smallest example."""
    # Not before pytest has prepared what it loads itself.
    from hypothesis import Phase, settings

    import perdure

    if Path(os.environ[COPY]) not in Path(perdure.__file__).parents:
        pytest.exit(f"{perdure.__file__} is not the copy's", 3)
    settings.register_profile("sabotage", phases=[p for p in Phase if p not in (Phase.shrink, Phase.explain)])
    settings.load_profile("sabotage")
