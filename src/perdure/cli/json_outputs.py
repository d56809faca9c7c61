"""What every command prints for programs: its shapes, and when it ends with a negative answer.

The reference is generated from this table, ``perdure schema`` prints it as JSON Schema, and the tests hold the real
output of every command against it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.shapes.approvals import Decided, Effect, Waiting
from perdure.shapes.basics import Page
from perdure.shapes.events import Change, Event
from perdure.shapes.history import Checkpoint, Diff, Merge
from perdure.shapes.machine import Bench, Demo, Doctor, LogLine, NewAgent, Serving
from perdure.shapes.schema import schemas
from perdure.shapes.sessions import Session, SessionState, Why
from perdure.shapes.store import Migrated, Pruned, Store, Swept, Table, Transferred, Verified
from perdure.shapes.work import Bulk, Drained, Fleet, Posted, Replay, Run, Submitted

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REF = "#/$defs/{name}"


class Output(NamedTuple):
    """What a command prints for programs."""

    shapes: tuple[Any, ...]
    """One of these."""
    negative: str = ""
    """When it ends with 1 although what it was asked about is there."""
    lines: bool = False
    """One object a line, as it happens, instead of one document."""
    option: str = "--json"
    when: tuple[str, ...] = ()
    """Which of several shapes it is, in the same order."""


_BRANCHED = Output((Checkpoint,))
_MANY = Output((Bulk,))
_DECIDED = Output((Waiting, Decided), when=("without an id", "with one"))
_POSTED = Output((Posted,))
_RUN = Output((Run,), "the run ended with failed, incompatible, in_doubt or cancelled")
_TRANSFERRED = Output((Transferred,), "something could not be brought over, or blobs are missing")
_SERVED = Output((Serving,), lines=True)

OUTPUTS: dict[str, Output] = {
    "ls": Output((Page[Session],)),
    "show": Output((SessionState,)),
    "why": Output((Why,)),
    "stats": Output((Store,)),
    "tail": Output((Change, Event), lines=True, when=("without SESSION", "of one session")),
    "log": Output((Page[Checkpoint],)),
    "diff": Output((Diff,), "they differ, with --exit-code"),
    "fork": _BRANCHED,
    "rewind": _BRANCHED,
    "merge": Output((Merge,), "both sides have changed the same: nothing was written"),
    "tag": _BRANCHED,
    "approve": _DECIDED,
    "reject": _DECIDED,
    "answer": _DECIDED,
    "resolve": Output((Waiting, Effect, Bulk), when=("of one session", "of one call", "of all calls of sessions")),
    "cancel": _MANY,
    "post": _POSTED,
    "outcome": _POSTED,
    "wake": _POSTED,
    "verify": Output((Verified,), "something is not as it was written"),
    "doctor": Output((Doctor,), "a check failed"),
    "backup": _TRANSFERRED,
    "restore": _TRANSFERRED,
    "sweep": Output((Swept,), "a session could not be removed"),
    "prune": Output((Pruned,)),
    "migrate": Output((Migrated,), "a session could not be migrated"),
    "export": _TRANSFERRED,
    "import": _TRANSFERRED,
    "copy": _TRANSFERRED,
    "query": Output((Table,)),
    "replay": Output(
        (Replay, Run),
        "a step differs; with --live, the run ended with failed, incompatible or in_doubt",
        when=("from the record", "with --live"),
    ),
    "new": Output((NewAgent,)),
    "run": _RUN,
    "resume": _RUN,
    "worker": Output((LogLine,), lines=True, option="--log-json"),
    "submit": Output((Submitted,)),
    "workers": Output((Fleet,)),
    "drain": Output((Drained,), "some are still there after --wait"),
    "pause": _MANY,
    "unpause": _MANY,
    "retry": _MANY,
    "serve": _SERVED,
    "console": _SERVED,
    "demo": Output((Demo,), "something was lost, doubled or never finished"),
    "bench": Output((Bench,)),
    "schema": Output((dict[str, Any],)),
}
FOR_PEOPLE = {"chat": "a conversation in a terminal; programs use `run --json` and `tail --json`"}
"""Commands without a form for programs, and why."""


def components() -> dict[str, dict[str, Any]]:
    """Every shape that commands print, by its name, as JSON Schema."""
    kinds = {kind for output in OUTPUTS.values() for kind in output.shapes}
    return schemas(sorted(kinds, key=str), REF)[1]


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints; of one line of it, where it prints lines."""
    (first, *others), made = schemas(OUTPUTS[command].shapes, REF)
    whole = {"anyOf": [first, *others]} if others else first
    return {"$schema": DIALECT, "title": f"perdure {command} {OUTPUTS[command].option}", **whole, "$defs": made}
