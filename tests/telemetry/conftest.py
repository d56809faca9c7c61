"""Every test begins and ends with nobody listening."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(telemetry.VARIABLE, raising=False)
    monkeypatch.delenv(telemetry.CONTENT, raising=False)
    telemetry.disable()
    telemetry.health.reset()
    yield
    telemetry.disable()
    telemetry.health.reset()
