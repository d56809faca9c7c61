"""What a child process says before and after each thing it does, and what that adds up to.

One file, one line per event, appended with a single ``write`` and never synced: under SIGKILL whatever was
written stays. The outside world (which tool was entered, what it did) is part of it, so that the file is one
totally ordered account of a store's life, kept apart from the store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Event = dict[str, Any]


def fingerprint(state: Any) -> str:
    """Names a state by its content."""
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Try(NamedTuple):
    """A commit that was handed to the store."""

    order: int
    session: str
    branch: str
    line: int
    step: int
    id: str
    digest: str
    takes: tuple[str, ...]


class Seen(NamedTuple):
    """A checkpoint whose state was acknowledged to the program."""

    session: str
    line: int
    step: int
    id: str
    state: str


class History:
    """The account so far, as the checks need it."""

    def __init__(self) -> None:
        self.events = 0
        self.tries: dict[str, Try] = {}
        self.acked: set[str] = set()
        self.seen: list[Seen] = []
        self.posted: dict[tuple[str, str], bool] = {}
        """(session, key) -> whether it was acknowledged."""
        self.token = 0
        self.plans: dict[int, Event] = {}
        self.done: set[int] = set()
        self.entered: Counter[tuple[str, int]] = Counter()
        self.did: Counter[tuple[str, int]] = Counter()
        self.effects: dict[tuple[str, int], set[str]] = {}
        self.results: dict[int, Any] = {}
        self.fleeting: set[str] = set()
        """Sessions that are meant to expire: each checkpoint is exact, or gone with its session."""
        self.gone: set[str] = set()
        """Sessions whose removal was acknowledged."""
        self.thinned: dict[str, set[str]] = {}
        """Session -> checkpoints that retention may have dropped."""
        self.touched: set[str] = set()
        """Sessions that were written since the last check."""
        self.fresh: list[Seen] = []
        """States acknowledged since the last check."""
        self.problems: list[Event] = []
        self.census: dict[str, dict[str, int]] = {}

    @property
    def open_plan(self) -> Event | None:
        """What was begun last and not finished."""
        last = max(self.plans, default=0)
        return self.plans[last] if last and last not in self.done else None

    def feed(self, event: Event) -> None:
        """Take one event in."""
        self.events += 1
        kind = event["t"]
        if "s" in event:
            self.touched.add(event["s"])
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(event)

    def _on_try(self, e: Event) -> None:
        place = (e["s"], e["b"], e["l"], e["n"])
        self.tries[e["id"]] = Try(self.events, *place, e["id"], e["d"], tuple(e["takes"]))
        # A session that was removed may be begun anew.
        self.gone.discard(e["s"])

    def _on_ack(self, e: Event) -> None:
        self.acked.add(e["id"])

    def _on_state(self, e: Event) -> None:
        seen = Seen(e["s"], e["l"], e["n"], e["id"], e["h"])
        self.seen.append(seen)
        self.fresh.append(seen)

    def _on_post(self, e: Event) -> None:
        self.posted.setdefault((e["s"], e["key"]), False)

    def _on_posted(self, e: Event) -> None:
        self.posted[e["s"], e["key"]] = True

    def _on_token(self, e: Event) -> None:
        self.token = max(self.token, e["token"])

    def _on_plan(self, e: Event) -> None:
        self.plans[e["plan"]["n"]] = e["plan"]

    def _on_done(self, e: Event) -> None:
        self.done.add(e["n"])

    def _on_entered(self, e: Event) -> None:
        call = (e["tool"], e["n"])
        self.entered[call] += 1
        self.effects.setdefault(call, set()).add(e["effect"])

    def _on_did(self, e: Event) -> None:
        self.did[e["tool"], e["n"]] += 1

    def _on_called(self, e: Event) -> None:
        self.results[e["n"]] = e["result"]

    def _on_fleeting(self, e: Event) -> None:
        self.fleeting.add(e["s"])

    def _on_gone(self, e: Event) -> None:
        self.gone.add(e["s"])

    def _on_back(self, e: Event) -> None:
        self.gone.discard(e["s"])

    def _on_thin(self, e: Event) -> None:
        self.thinned.setdefault(e["s"], set()).update(e["ids"])

    def _on_checked(self, e: Event) -> None:
        self.touched.clear()
        self.fresh.clear()

    def _on_problem(self, e: Event) -> None:
        self.problems.append(e)

    def _on_census(self, e: Event) -> None:
        self.census[e["scenario"]] = e["points"]


class Journal:
    """An account being written."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.history = History()
        for event in events:
            self.history.feed(event)

    def note(self, happened: str, /, **fields: Any) -> None:
        """Say what happened."""
        event = {"t": happened, **fields}
        self.keep(event)
        self.history.feed(event)

    def keep(self, event: Event) -> None:
        """Put an event where it survives the process; here it does not."""


class FileJournal(Journal):
    """An account in a file, which outlives the process that writes it."""

    def __init__(self, path: str) -> None:
        super().__init__(read_journal(path))
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def keep(self, event: Event) -> None:
        # The line break comes first: a line that a kill has cut short spoils no other.
        os.write(self._fd, b"\n" + json.dumps(event, separators=(",", ":")).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_journal(path: str) -> list[Event]:
    """All whole lines of a journal."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    events: list[Event] = []
    for line in lines:
        if line:
            try:
                events.append(json.loads(line))
            except ValueError:
                # A kill in the middle of a write: whatever it meant to say was not said.
                continue
    return events
