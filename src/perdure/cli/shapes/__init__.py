"""What every command prints for programs, in one place: its shape, and when it ends with a negative answer.

The reference is generated from this table, ``perdure schema`` prints it as JSON Schema, and the tests hold the real
output of every command against it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import msgspec

from perdure.cli.shapes import sessions as s
from perdure.cli.shapes import work as w

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


_BRANCHED = Output((s.Checkpoint,))
_MANY = Output((s.Many,))
_RESOLVED = Output((s.Waiting, s.Decided, s.Many), when=("of one session", "of one call", "of all calls of sessions"))
_DECIDED = Output((s.Waiting, s.Decided), when=("without an id", "with one"))
_POSTED = Output((s.Posted,))
_RUN = Output((s.Ended,), "the run ended with failed, incompatible, in_doubt or cancelled")
_TRANSFERRED = Output((w.Transferred,), "a session could not be transferred, or blobs are missing")
_SERVED = Output((w.Serving,), lines=True)

OUTPUTS: dict[str, Output] = {
    "ls": Output((s.Sessions,)),
    "show": Output((s.State,)),
    "why": Output((s.Why,)),
    "stats": Output((w.Stats,)),
    "tail": Output((s.Change, s.Event), lines=True, when=("without SESSION", "of one session")),
    "log": Output((s.History,)),
    "diff": Output((s.Differences,), "they differ, with --exit-code"),
    "fork": _BRANCHED,
    "rewind": _BRANCHED,
    "merge": Output((s.Merged,), "both sides have changed the same: nothing was written"),
    "tag": _BRANCHED,
    "approve": _DECIDED,
    "reject": _DECIDED,
    "answer": _DECIDED,
    "resolve": _RESOLVED,
    "cancel": _MANY,
    "post": Output((s.Posted,)),
    "outcome": Output((s.Posted,)),
    "wake": Output((s.Posted,)),
    "verify": Output((w.Verified,), "something is not as it was written"),
    "doctor": Output((w.Checked,), "a check failed"),
    "backup": _TRANSFERRED,
    "restore": _TRANSFERRED,
    "sweep": Output((w.Swept,), "a session could not be removed"),
    "prune": Output((w.Pruned,)),
    "migrate": Output((w.Migrated,), "a session could not be migrated"),
    "export": _TRANSFERRED,
    "import": _TRANSFERRED,
    "copy": _TRANSFERRED,
    "query": Output((w.Answer,)),
    "replay": Output(
        (s.Replayed, s.Rerun),
        "a step differs; with --live, the run ended with failed, incompatible or in_doubt",
        when=("from the record", "with --live"),
    ),
    "new": Output((w.New,)),
    "run": _RUN,
    "resume": _RUN,
    "worker": Output((w.LogLine,), lines=True, option="--log-json"),
    "submit": Output((w.Submitted,)),
    "workers": Output((w.Fleet,)),
    "drain": Output((w.Drained,), "some are still there after --wait"),
    "pause": _MANY,
    "unpause": _MANY,
    "retry": _MANY,
    "serve": _SERVED,
    "console": _SERVED,
    "demo": Output((w.Night,), "something was lost, doubled or never finished"),
    "bench": Output((w.Bench,)),
    "schema": Output((dict[str, Any],)),
}
FOR_PEOPLE = {"chat": "a conversation in a terminal; programs use `run --json` and `tail --json`"}
"""Commands without a form for programs, and why."""


@functools.cache
def components() -> dict[str, dict[str, Any]]:
    """Every shape by its name, as JSON Schema."""
    kinds = {kind for output in OUTPUTS.values() for kind in output.shapes}
    return _tidy(msgspec.json.schema_components(sorted(kinds, key=str), ref_template=REF)[1])


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints; of one line of it, where it prints lines."""
    (first, *others), made = msgspec.json.schema_components(OUTPUTS[command].shapes, ref_template=REF)
    whole = {"anyOf": [first, *others]} if others else first
    return {"$schema": DIALECT, "title": f"perdure {command} {OUTPUTS[command].option}", **whole, "$defs": _tidy(made)}


def _tidy(schema: Any) -> Any:
    """Without titles that repeat a name."""
    if isinstance(schema, dict):
        return {k: _tidy(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}  # pyright: ignore
    return [_tidy(v) for v in schema] if isinstance(schema, list) else schema  # pyright: ignore
