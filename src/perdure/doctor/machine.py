"""Checks of this machine and of a store: versions, the key, the disk and the clocks, and what survives a kill.

Every check returns a finding. Those that write use a scratch database beside the store, never the store itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import perdure
from perdure.doctor.findings import FAIL, NOTE, OK, Finding
from perdure.errors import InvalidInput, PerdureError
from perdure.protocols import Logged, SetsAside
from perdure.record.keys import ENV, find_keys
from perdure.system.disk import network_filesystem
from perdure.system.urls import only_existing, path_of, shown
from perdure.system.wording import count, left_aside, sessions_stored, size

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = ("apsw", "msgspec", "zstandard", "typer", "rich")
_SKEW = 5000
"""Milliseconds two clocks may differ before it is worth a word."""


def check_machine(url: str, blobs: str | None = None) -> Iterator[Finding]:
    """All checks, one after the other; without a URL those that need no store of yours."""
    yield check_versions()
    yield check_key()
    if url:
        yield from check_store(url, blobs)
    folder = _folder(url)
    yield check_disk(folder)
    if not url or url.startswith("sqlite"):
        yield check_locks()
    yield from check_durability("file" if url.startswith("file:") else "sqlite", folder)


def check_versions() -> Finding:
    """What is installed."""
    from importlib.metadata import PackageNotFoundError, version

    import apsw

    parts = [f"perdure {perdure.__version__}", f"Python {sys.version.split()[0]}"]
    missing: list[str] = []
    for name in LIBRARIES:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    parts.append(f"SQLite {apsw.sqlite_lib_version()}")
    if missing:
        return Finding("versions", FAIL, f"{', '.join(missing)} not installed: pip install perdure brings them")
    return Finding("versions", OK, ", ".join(parts))


def check_key() -> Finding:
    """Whether digests are keyed."""
    try:
        keys = find_keys(None)
    except InvalidInput as error:
        return Finding("key", FAIL, f"{ENV}: {error}")
    if keys:
        return Finding("key", OK, f"{ENV} is set: digests are keyed by {keys.current}")
    return Finding(
        "key", NOTE, f"{ENV} is not set: damage is found, but whoever can write the store can forge a history"
    )


def check_store(url: str, blobs: str | None = None) -> Iterator[Finding]:
    """Whether it opens, what it holds and what it promises; one that is not there is not made."""
    try:
        with perdure.open(url, maintain=False, blobs=blobs or None, **only_existing(url)) as db:
            usage = db.usage()
            ahead = max((row.updated for row in db.sessions(limit=1000)), default=0) - db.kernel.clock.wall()
            aside = max(0, usage.sessions - sum(number for *_, number in db.counts()))
            held = f"{sessions_stored(usage.sessions, aside)}, {count(usage.checkpoints, 'checkpoint')}"
            words = f"{db.url}, {held}. {db.promise}"
            if blobs:
                words += f" Its blobs are in {shown(blobs)}."
            ends = list(check_ends(db.kernel.store)) if isinstance(db.kernel.store, Logged) else []
            if isinstance(db.kernel.store, SetsAside) and (left := db.kernel.store.left_beside()):
                ends.append(Finding("set aside", NOTE, left_aside(left)))
    except PerdureError as error:
        yield Finding("store", FAIL, str(error))
        return
    if ahead > _SKEW:
        yield Finding("store", NOTE, f"its newest session is {ahead // 1000} s ahead of this clock. {words}")
    else:
        yield Finding("store", OK, words)
    yield from ends


def check_ends(store: Logged) -> Iterator[Finding]:
    """Logs that end in a damaged record, and what was cut off or set aside before."""
    ends = store.damaged()
    for error in ends:
        yield Finding("ends of logs", FAIL, str(error))
    for error in store.unreadable():
        if error.where not in [end.where for end in ends]:
            yield Finding("logs", FAIL, str(error))
    if kept := store.kept():
        more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
        words = "interrupted writes, which nobody was told are saved, and damaged records whose loss was accepted"
        words += "; nothing reads them, and they may be deleted"
        yield Finding("ends of logs", NOTE, f"kept beside their logs: {', '.join(kept[:3])}{more}; these are {words}")


def _folder(url: str) -> str:
    """Where to try things out: beside the store, so that it is the same disk."""
    path = path_of(url)
    return os.path.dirname(os.path.realpath(path)) if path else os.getcwd()


def check_locks() -> Finding:
    """Whether something else in a process can drop the locks of its SQLite files."""
    from perdure.stores.sqlite.own_locks import PROMISE, WEAKNESS

    return Finding("locks", NOTE if WEAKNESS else OK, PROMISE)


def check_disk(folder: str) -> Finding:
    """Whether a folder is on a local disk with room."""
    if kind := network_filesystem(folder):
        return Finding("disk", NOTE, f"{folder} is on a network filesystem ({kind}): use a local disk")
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < 64 << 20:
        return Finding("disk", NOTE, f"only {size(free)} are free in {folder}")
    return Finding("disk", OK, f"local, {size(free)} free")


def check_durability(kind: str, folder: str) -> Iterator[Finding]:
    """Clocks, and what a scratch database of this kind in a folder keeps: reopened, and killed twice."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=folder)
    except OSError as error:
        yield Finding("durability", FAIL, f"{folder} cannot be written ({error.strerror}): nothing can be saved there")
        return
    with scratch as place:
        yield check_clock(place)
        url = f"file://{place}/store" if kind == "file" else f"sqlite:///{place}/scratch.db"
        during = "file.append.before_fsync" if kind == "file" else "sqlite.append.before_commit"
        try:
            yield check_reopening(url)
            yield check_kill(url, "between")
            yield check_kill(url, "during", during)
        except PerdureError as error:
            yield Finding("durability", FAIL, str(error))


def check_clock(place: str) -> Finding:
    """The wall clock against the one that stamps files; time must also pass."""
    path = os.path.join(place, "clock")
    before = time.monotonic_ns()
    with open(path, "wb"):
        now = time.time()
    gap = abs(os.stat(path).st_mtime - now)
    if time.monotonic_ns() < before:
        return Finding("clock", FAIL, "the monotonic clock goes backwards: leases cannot be trusted")
    if now < 1_700_000_000:
        return Finding("clock", FAIL, "the wall clock stands before 2023: sessions would expire at the wrong time")
    if gap * 1000 > _SKEW:
        return Finding("clock", NOTE, f"the disk stamps files {gap:.0f} s apart from this machine's clock")
    return Finding("clock", OK, "wall and monotonic clocks agree with the disk")


def check_reopening(url: str) -> Finding:
    """Whether what was written is there when the database is opened again."""
    began = time.perf_counter_ns()
    with perdure.open(url, maintain=False) as db, db.session("reopen", ttl=None) as s:
        s.vars["written"] = "before"
        s.commit()
    took = (time.perf_counter_ns() - began) / 1e6
    with perdure.open(url, maintain=False) as db:
        found = db.read("reopen").vars["written"]
    verdict = OK if found == "before" else FAIL
    return Finding("reopen", verdict, f"written, closed, opened and read again ({took:.0f} ms to open and write)")


def check_kill(url: str, where: str, point: str = "") -> Finding:
    """Kill a child that commits, and see that what it was told is durable is there, and nothing by halves."""
    session = f"killed {where}"
    command = [sys.executable, "-m", "perdure.doctor.commit_process", url, session, *([point] if point else [])]
    # In a session of its own: Ctrl-C is ours to hear, and ends it through us.
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    told = 0
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "here":
                break
            told = int(line)
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
    name = f"SIGKILL {where} commits" if where == "between" else "SIGKILL during a commit"
    if child.returncode != -9 or not told:
        return Finding(name, FAIL, f"the child ended by itself with {child.returncode} after {told} commits")
    with perdure.open(url, maintain=False) as db, db.session(session) as s:
        state: Any = s.state.plain()
    whole = state["vars"]["number"] == len(state["messages"])
    kept = state["vars"]["number"] >= told
    return Finding(
        name, OK if whole and kept else FAIL,
        f"{told} commits had returned, {len(state['messages'])} are there" + ("" if whole else ", one by halves"),
    )  # fmt: skip
