"""What keeps a store in order: migrate, sweep, compact, prune, collect, back up. Each may be interrupted anywhere."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.errors import Gone, NotFound
from perdure.opening import open as open_database
from perdure.stores.file.root import session_name
from perdure.stores.file.store import FileStore
from tests.campaigns.crash.journal import fingerprint
from tests.campaigns.crash.planning import DOING, MAKING, one_of, plan
from tests.campaigns.crash.worker import NEW

if TYPE_CHECKING:
    import random

    from tests.campaigns.crash.planning import Plan
    from tests.campaigns.crash.worker import Worker


@plan("migrate", lambda w, rng, n: {"session": f"old-{n}", "bulk": n % 2})
def _migrate(w: Worker, p: Plan, again: bool) -> None:
    n, session = p["n"], p["session"]
    try:
        there = w.old.read(session).checkpoint.schema if again else ""
    except NotFound:
        there = ""
    except Exception as e:  # a newer schema has no way back
        there = type(e).__name__
    if not there:
        with w.old.session(session) as s:
            s.vars["pref"] = n
            w.edit(s, n)
            s.commit()
            w.saw(s)
    if p["bulk"]:
        w.db.migrate()
    with w.db.session(session) as s:
        if s.vars.get("profile") != n or "pref" in s.vars or w.has(s, n) != 1:
            w.journal.note("problem", kind="half", what=f"{session} was migrated to {s.vars.plain()}")
        w.saw(s)


def _let_expire(w: Worker, session: str) -> None:
    if w.on_server:
        # A server has a clock of its own, which nobody moves.
        while (row := w.store.look(session)) is not None and row.heads and not row.over:
            time.sleep(0.05)
    else:
        w.pass_time(60_000)


@plan("sweep", lambda w, rng, n: {"session": f"brief-{n}"})
def _sweep(w: Worker, p: Plan, again: bool) -> None:
    session = p["session"]
    w.journal.note("fleeting", s=session)
    if session not in w.history.gone:
        row = w.store.look(session)
        if row is None or not row.reason:
            with w.db.session(session, ttl=1) as s:
                w.edit(s, p["n"])
                s.commit()
    _let_expire(w, session)
    w.db.sweep()
    try:
        w.db.read(session)
    except Gone:
        w.journal.note("gone", s=session)
    else:
        w.journal.note("problem", kind="half", what=f"{session} was swept, and is still there")


@plan("revive", lambda w, rng, n: {"session": f"back-{n}"})
def _revive(w: Worker, p: Plan, again: bool) -> None:
    if w.on_server:
        return  # it would have to live for longer than anybody waits here
    session = p["session"]
    w.journal.note("fleeting", s=session)
    row = w.store.look(session)
    if not w.db.set_aside(session) and (row is None or not row.heads):
        with w.db.session(session, ttl=50) as s:
            w.edit(s, p["n"])
            s.commit()
    _let_expire(w, session)
    w.db.sweep()
    if w.db.set_aside(session):
        w.db.revive(session)
    with w.db.session(session, ttl=None) as s:
        if w.has(s, p["n"]) != 1:
            w.journal.note("problem", kind="half", what=f"{session} was brought back as {s.vars.plain()}")
        s.vars["back"] = p["n"]
        s.commit()
        w.saw(s)


@plan("compact", one_of("talk", 3))
def _compact(w: Worker, p: Plan, again: bool) -> None:
    with w.db.session(p["session"], owner="ana") as s:
        for part in range(10, 15):
            if not (again and w.has(s, p["n"], part=part)):
                w.edit(s, p["n"], part=part)
                s.commit()
        w.saw(s)
    w.db.compact(p["session"])


def _make_prune(w: Worker, rng: random.Random, n: int) -> Plan:
    return {"session": "talk-0", "last": rng.randint(1, 6), "every": rng.choice((3, 4, None)), "adds": 4}


@plan("prune", _make_prune)
def _prune(w: Worker, p: Plan, again: bool) -> None:
    with w.db.session(p["session"], owner="ana") as s:
        for part in range(20, 20 + p["adds"]):
            if not (again and w.has(s, p["n"], part=part)):
                w.edit(s, p["n"], part=part)
                s.commit()
        w.saw(s)
        step = s.step
    if "pack" in p:
        w.db.compact(p["session"])
    last, every = p["last"], p["every"]
    may_go = [
        t.id
        for t in w.history.tries.values()
        if t.session == p["session"] and 1 < t.step <= step - last and (not every or t.step % every)
    ]
    w.journal.note("thin", s=p["session"], ids=may_go)
    w.db.prune(p["session"], keep_last=last, keep_every=every)


# So many are kept that the snapshot among them, which goes with the rows it refers to, has to be made anew.
DOING["prune:much"] = _prune
MAKING["prune:much"] = lambda w, rng, n: {
    "session": f"long-{n}", "last": 12, "every": None, "adds": 24, "pack": True
}  # fmt: skip


@plan("collect", lambda w, rng, n: {"session": ""})
def _collect(w: Worker, p: Plan, again: bool) -> None:
    """Blobs that nothing refers to are removed, and no other."""
    orphan = f"nobody's {p['n']}".encode()
    w.kernel.blobs.put(hashlib.sha256(orphan).hexdigest(), orphan)
    # What keeps blobs has a clock of its own, which nobody moves; and no other process writes here.
    time.sleep(0.05)
    w.db.collect(grace=0)


def _log_of(w: Worker, session: str) -> str:
    return f"{w.store._store._handle.root.folder(session_name(session))}/log"  # pyright: ignore[reportAttributeAccessIssue]


def _one_with_a_log(w: Worker, rng: random.Random, n: int) -> Plan:
    """A session that has been written, where there is one: nothing can be torn off another."""
    names = [f"talk-{k}" for k in range(3)]
    if isinstance(w.store._store, FileStore):
        names = [name for name in names if os.path.exists(_log_of(w, name))] or names
    return {"session": rng.choice(names)}


@plan("torn", _one_with_a_log)
def _torn(w: Worker, p: Plan, again: bool) -> None:
    """A write that the system has taken only a part of; the next one cuts it off. In files only."""
    if isinstance(w.store._store, FileStore):
        with suppress(FileNotFoundError), open(_log_of(w, p["session"]), "r+b") as log:
            log.seek(0, os.SEEK_END)
            # Less than a header even when several processes die before one cuts it off.
            log.write(b"\x9ePd")
    DOING["commit"](w, p, again)


@plan("backup", lambda w, rng, n: {"session": "", "file": f"backup-{n}"})
def _backup(w: Worker, p: Plan, again: bool) -> None:
    """A backup is whole, or not there; what is restored from it is what was there."""
    path = os.path.join(w.folder, p["file"])
    if not os.path.exists(path):
        w.db.backup(path)
    with open_database("memory://", schema=NEW, maintain=False, migrations=w.options["migrations"]) as other:
        other.restore(path)
        for row in w.db.sessions(limit=1000):
            if row.heads and fingerprint(other.read(row.id).plain()) != fingerprint(w.db.read(row.id).plain()):
                w.journal.note("problem", kind="lost", what=f"{row.id} was restored in another state")
    os.unlink(path)
