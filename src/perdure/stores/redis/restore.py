"""Putting a dumped session into the Redis store: it is laid ready in pieces, and becomes visible at once."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput, PerdureError
from perdure.model import PACK
from perdure.stores import rules
from perdure.stores.redis import scripts
from perdure.stores.redis.format import (
    artifact_value,
    entry_tail,
    mark,
    names_value,
    packed,
    row_tail,
)
from perdure.stores.redis.scripts import refusal, utf8
from perdure.stores.rules import SHOWN, restored_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.links.redis import Command
    from perdure.model import Dump, Row
    from perdure.stores.redis.scripts import ScriptRunner

LEFTOVER = 24 * 3600
"""Seconds after which something laid ready is taken for what a killed process left behind."""
PIECE = 1 << 20
"""Bytes laid ready in one round trip, more or less."""


def restore(runner: ScriptRunner, dump: Dump) -> None:
    """Write a dumped session; ``Conflict`` when one with checkpoints is there."""
    row = dump.row
    runner.link.check()
    stage = b"%b:stage:%b:" % (runner.prefix, os.urandom(8).hex().encode())
    totals = {"bytes": 0}
    commands, size = [_begin(runner, stage)], 0
    try:
        for command in _ready(dump, stage, totals):
            commands.append(command)
            size += sum(map(len, command))
            if size > PIECE:
                _send(runner, commands)
                commands, size = [], 0
        _send(runner, commands)
        answer = runner.ask(
            scripts.RESTORE,
            row.id,
            runner.now(),
            stage,
            os.urandom(8).hex().encode(),
            _about(dump, totals),
            runner.kept,
            *_fields(dump),
        )
    except BaseException:
        _clear(runner, stage)
        raise
    if there := refusal(answer):
        _clear(runner, stage)
        if there[0] == b"used":
            raise rules.other_restored(row.id, there[1].decode())
        name, value = there[1:]
        raise rules.has_checkpoints(row.id, None if name is None else runner.form.head(name.decode(), value))


def _begin(runner: ScriptRunner, stage: bytes) -> Command:
    """Note what is being laid ready, after taking away what killed processes left behind long ago."""
    stages, now = b"%b:stages" % runner.prefix, int(runner.link.one((b"TIME",))[0])
    for left in runner.link.one((b"ZRANGEBYSCORE", stages, b"-inf", b"%d" % (now - LEFTOVER))):
        _clear(runner, left)
    return (b"ZADD", stages, b"%d" % now, stage)


def _about(dump: Dump, totals: dict[str, int]) -> bytes:
    row = restored_row(dump)
    return packed(
        {
            "owner": row.owner,
            "status": row.status,
            "created": str(row.created),
            "updated": str(row.updated),
            "expires": "" if row.expires is None else str(row.expires),
            "reason": row.reason,
            "lines": str(row.lines),
            "agent": row.agent,
            "error": row.error,
            "label": row.label,
            "token": str(row.lease.token),
            "long": str(max((a.hi - a.lo + 1 for a in dump.artifacts if a.kind == PACK), default=0)),
            "bytes": totals["bytes"],
        }
    )


def _fields(dump: Dump) -> Iterator[bytes]:
    """Heads of branches and ends of lines, name and value by turns."""
    last: dict[int, int] = {}
    for stored, _ in dump.rows:
        last[stored.line] = max(last.get(stored.line, 0), stored.step)
    for head in dump.row.heads:
        yield b"h:" + utf8(head.branch)
        yield b"%d:%d:%b" % (head.line, head.step, head.id)
    for line, step in last.items():
        yield b"t:%d" % line
        yield b"%d" % step


def _ready(dump: Dump, stage: bytes, totals: dict[str, int]) -> Iterator[Command]:
    """The commands that lay everything ready."""
    for place, (stored, projections) in enumerate(dump.rows):
        field = b"%d:%d" % (stored.line, stored.step)
        shown = _projected(stored, projections)
        value = b"+%d:" % place + row_tail(mark(stored.id, stored.digest), shown, stored.envelope, stored.payload)
        totals["bytes"] += len(value)
        yield (b"HSET", stage + b"r", field, value)
        branch, kind, status, at = shown[:4]
        change = ("branch", branch, "line", str(stored.line), "step", str(stored.step), "id", stored.id.hex())
        yield (b"ZADD", stage + b"o", b"%d" % place, packed((*change, "kind", kind, "status", status, "at", str(at))))
        if shown[8]:
            yield (b"HSET", stage + b"l", b"%d" % stored.line, b"%d:%b" % (stored.step, utf8(branch)))
        if shown[7]:
            yield (b"HSET", stage + b"b", b"r:" + field, names_value(shown[7]))
    for artifact in dump.artifacts:
        key = f"{artifact.kind}:{artifact.line:010}:{artifact.lo:016}".encode()
        value = artifact_value(artifact)
        totals["bytes"] += len(value)
        yield (b"HSET", stage + b"a", key, value)
        yield (b"ZADD", stage + b"x", b"0", b"%b:%016d" % (key, artifact.hi))
        if artifact.blobs:
            yield (b"HSET", stage + b"b", b"a:" + key, names_value(artifact.blobs))
    for place, entry in enumerate(dump.inbox):
        name = b"%b%d:%b" % (b"t" if entry.taken else b"w", entry.seq, utf8(entry.key))
        yield (b"ZADD", stage + b"k", b"%d" % place, name)
        yield (b"HSET", stage + b"i", utf8(entry.key), entry_tail(entry))


def _projected(stored: Row, projections: dict[str, Any]) -> tuple[Any, ...]:
    missing = [name for name in SHOWN if name not in projections]
    if missing:
        raise InvalidInput(f"the dump is incomplete: a row has no {missing[0]!r}")
    values = {**projections, "takes": tuple(projections["takes"]), "blobs": tuple(projections["blobs"])}
    return tuple(values[name] for name in SHOWN)


def _send(runner: ScriptRunner, commands: list[Command]) -> None:
    for answer in runner.link.many(commands):
        if isinstance(answer, PerdureError):
            raise answer


def _clear(runner: ScriptRunner, stage: bytes) -> None:
    """Take away what was laid ready; when that fails too, a later restore does it."""
    with suppress(PerdureError):
        runner.link.many(
            [
                (b"UNLINK", *[stage + part for part in (b"r", b"l", b"a", b"x", b"b", b"k", b"i", b"o")]),
                (b"ZREM", b"%b:stages" % runner.prefix, stage),
            ]
        )
