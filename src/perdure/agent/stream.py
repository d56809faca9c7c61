"""What happens in a run, as it happens, for whoever listens. Deltas are provisional until committed or retracted."""

from __future__ import annotations

from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that happened: delta, committed, retracted, call, outcome, waiting or ended."""

    kind: str
    session: str
    step: int
    data: dict[str, Any]
