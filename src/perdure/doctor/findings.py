"""What a check says (:class:`Finding`), and what one run of somebody's app has shown (:class:`AppRun`)."""

from __future__ import annotations

from typing import Any, NamedTuple

OK, NOTE, FAIL = "ok", "note", "fail"


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    verdict: str
    """ok, note (worth knowing) or fail (must be seen to)"""
    words: str
    where: str = ""
    """FILE:LINE of the app's own code, when that is known."""


class AppRun(NamedTuple):
    """One run of an app in a child process."""

    events: list[dict[str, Any]]
    """What the child has told, in order."""
    killed: bool
    url: str
    """The scratch database it has worked on."""
    late: bool
    """Whether it was ended because it took too long."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [e for e in self.events if e.get("event") == kind]

    @property
    def error(self) -> dict[str, Any] | None:
        """What the app ended with, if it was an error."""
        return next(iter(self.of("error")), None)

    @property
    def saved(self) -> list[dict[str, Any]]:
        """The saves that have landed."""
        return [e for e in self.of("save") if not e["lost"]]
