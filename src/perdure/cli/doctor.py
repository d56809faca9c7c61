"""``perdure doctor``: whether this machine can keep what the store promises, or an app survives being killed."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.which_database import AsJson, BlobsAt, NoDatabase, Store, find_url, path_of
from perdure.doctor.findings import FAIL, NOTE, OK, Finding
from perdure.errors import InvalidInput, PerdureError
from perdure.system.urls import shown
from perdure.system.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = ("apsw", "msgspec", "zstandard", "typer", "rich")
_SKEW = 5000
"""Milliseconds two clocks may differ before it is worth a word."""
_STYLES = {OK: "green", NOTE: "yellow", FAIL: "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("doctor")(doctor)


def doctor(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP]",
            help="Check your own program: app.py with an agent or a script in it, app:agent, or app:work, a function "
            "of a database.",
            show_default=False,
        ),
    ] = None,
    say: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="With APP: what is said to the agent, in this order.")
    ] = None,
    really: Annotated[
        bool, typer.Option("--really", help="With APP: run it even when its model is a real one, which costs money.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=3600, help="With APP: how long one run may take.")
    ] = 60.0,
    store: Store = None,
    blobs: BlobsAt = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine can keep what the store promises; or that your program survives being killed.

    Without APP it looks at versions, the key, the store, its disk and the clocks, and kills a child process to see what
    survives; that test writes to a scratch database beside yours, never into it. With APP it runs your program in
    scratch folders on scratch databases, kills it after saves, inside calls and inside answers, starts it again, and
    looks at what it saves and when. Its tools really run.
    """
    from perdure.cli.output import Out, print_json
    from perdure.cli.terminal_text import cut
    from perdure.shapes.machine import Check, Doctor

    if app is None and (say or really):
        raise InvalidInput("--say and --really go with APP")
    if app is not None:
        from perdure.doctor import app as doctor_app

        checks: Iterator[Any] = doctor_app.findings(app, say or [], really=really, timeout=timeout)
    else:
        checks = findings(store, blobs)
    found: list[Any] = []
    out = Out()
    for finding in checks:
        found.append(finding)
        if not as_json:
            place = f" ({cut(finding.where, 300)})" if finding.where else ""
            out.line(
                f"{finding.verdict:4}  {finding.name}: {cut(finding.words, 1500)}{place}", _STYLES[finding.verdict]
            )
    failed = sum(f.verdict == FAIL for f in found)
    if as_json:
        checked = [Check(name=f.name, verdict=f.verdict, detail=f.words, place=f.where) for f in found]
        print_json(Doctor(ok=not failed, checks=checked))
    else:
        out.line(f"{failed} of {len(found)} checks failed" if failed else f"all {len(found)} checks passed", "bold")
    if failed:
        raise typer.Exit(1)


def findings(given: str | None, blobs: str | None = None) -> Iterator[Finding]:
    """All checks, one after the other."""
    yield _versions()
    yield _key()
    url = ""
    try:
        url = find_url(given)
    except NoDatabase as error:
        yield Finding("store", NOTE, f"{error}; the checks below use a scratch database")
    except PerdureError as error:
        yield Finding("store", FAIL, str(error))
    if url:
        yield _opens(url, blobs)
    folder = _folder(url)
    yield _filesystem(folder)
    yield from _durability("file" if url.startswith("file:") else "sqlite", folder)


def _versions() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    import apsw

    from perdure import __version__

    parts = [f"perdure {__version__}", f"Python {sys.version.split()[0]}"]
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


def _key() -> Finding:
    from perdure.record.keys import ENV, find_keys

    try:
        keys = find_keys(None)
    except InvalidInput as error:
        return Finding("key", FAIL, f"{ENV}: {error}")
    if keys:
        return Finding("key", OK, f"{ENV} is set: digests are keyed by {keys.current}")
    return Finding(
        "key", NOTE, f"{ENV} is not set: damage is found, but whoever can write the store can forge a history"
    )


def _opens(url: str, blobs: str | None) -> Finding:
    import perdure

    try:
        with perdure.open(url, maintain=False, blobs=blobs or None) as db:
            usage = db.kernel.store.usage()
            ahead = max((row.updated for row in db.sessions(limit=1000)), default=0) - db.kernel.clock.wall()
            held = f"{count(usage.sessions, 'session')}, {count(usage.checkpoints, 'checkpoint')}"
            words = f"{db.url}, {held}. {db.promise}"
            if blobs:
                words += f" Its blobs are in {shown(blobs)}."
    except PerdureError as error:
        return Finding("store", FAIL, str(error))
    if ahead > _SKEW:
        return Finding("store", NOTE, f"its newest session is {ahead // 1000} s ahead of this clock. {words}")
    return Finding("store", OK, words)


def _folder(url: str) -> str:
    """Where to try things out: beside the store, so that it is the same disk."""
    path = os.path.abspath(path_of(url) or ".")
    return os.path.dirname(path) if url else path


def _filesystem(folder: str) -> Finding:
    from perdure.system.disk import network_filesystem

    if kind := network_filesystem(folder):
        return Finding("disk", NOTE, f"{folder} is on a network filesystem ({kind}): use a local disk")
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    from perdure.system.wording import size

    if free < 64 << 20:
        return Finding("disk", NOTE, f"only {size(free)} are free in {folder}")
    return Finding("disk", OK, f"local, {size(free)} free")


def _durability(kind: str, folder: str) -> Iterator[Finding]:
    import tempfile

    try:
        scratch = tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=folder)
    except OSError as error:
        yield Finding("durability", FAIL, f"{folder} cannot be written ({error.strerror}): nothing can be saved there")
        return
    with scratch as place:
        yield _clock(place)
        url = f"file://{place}/store" if kind == "file" else f"sqlite:///{place}/scratch.db"
        during = "file.append.before_fsync" if kind == "file" else "sqlite.append.before_commit"
        try:
            yield _reopen(url)
            yield _killed(url, "between", "")
            yield _killed(url, "during", during)
        except PerdureError as error:
            yield Finding("durability", FAIL, str(error))


def _clock(place: str) -> Finding:
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


def _reopen(url: str) -> Finding:
    import perdure

    began = time.perf_counter_ns()
    with perdure.open(url, maintain=False) as db, db.session("reopen", ttl=None) as s:
        s.vars["written"] = "before"
        s.commit()
    took = (time.perf_counter_ns() - began) / 1e6
    with perdure.open(url, maintain=False) as db:
        found = db.read("reopen").vars["written"]
    verdict = OK if found == "before" else FAIL
    return Finding("reopen", verdict, f"written, closed, opened and read again ({took:.0f} ms to open and write)")


def _killed(url: str, where: str, point: str) -> Finding:
    """Kill a child that commits, and see that what it was told is durable is there, and nothing by halves."""
    import subprocess

    import perdure

    session = f"killed {where}"
    command = [sys.executable, "-m", "perdure.doctor.kill_test", url, session, *([point] if point else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
        if child.stdout is not None:
            child.stdout.close()
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
