"""A live witness: told of every commit as it returns, and asked before anything is written.

What is compared, and when. At open: the store's id, the newest checkpoint of each of the sessions noted last
(:data:`AT_OPEN` of them), and whatever does not fit together in the file; when the store has another epoch than the
witness knows, once, everything. When a session is first written to by this process, or again after a new epoch: what
was noted of it last (:data:`AT_FIRST_USE` lines). ``verify`` compares everything, always. A store that lacks any of it
is behind its witness: it is read, and not written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import threading
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import Corrupted, PerdureError, Unavailable
from perdure.history.lives import life_of
from perdure.model import Kind
from perdure.record.tombstones import LIFE
from perdure.system.commands import quoted, typed
from perdure.system.disk import FILE_MODE
from perdure.upkeep.own_files import check_apart
from perdure.upkeep.witness import (
    Call,
    Kept,
    Mended,
    Renewed,
    Seen,
    Witness,
    append_line,
    behind,
    find_lost,
    parse_witness,
    see,
    see_store,
    signed_line,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure.kernel import Kernel
    from perdure.record.codec import Point
    from perdure.session.journal import Called
    from perdure.upkeep.verify import Finding

COMPACT_FROM = 1000
"""Lines behind the end line below which a live witness is not written anew when it is opened."""
AT_OPEN = 32
AT_FIRST_USE = 8
OWED = 1000
"""So many lines that could not be written are kept, to be written later."""
_OF_EFFECTS = {Kind.DONE, Kind.FAILED, Kind.IN_DOUBT, Kind.STARTED, Kind.WAITING}
_SPEAKS_OF = re.compile(rb'\[\["((?:[^"\\]|\\.)*)","((?:[^"\\]|\\.)*)",(\d+),(\d+),')
log = logging.getLogger("perdure")


class LiveWitness:
    """The witness of an open database. Its file may be shared by several processes."""

    def __init__(self, kernel: Kernel, path: str | os.PathLike[str]) -> None:
        self._kernel = kernel
        self._path = os.path.abspath(path)
        check_apart(kernel, self._path, "witness")
        self._lock = threading.Lock()
        """For writing; whoever commits never waits for somebody who reads."""
        self._reading = threading.Lock()
        self._owed: deque[bytes] = deque()
        self._torn = b""
        """What was written of the first line that is owed, before it failed."""
        self._failing = False
        self._forgotten = 0
        self._lines = 0
        self._offset = 0
        self._rest = b""
        self._fd = self._open()
        try:
            self._known = self._read()
            self._mend()
            self._checked: dict[str, str] = {}
            self._behind = self._compare()
        except BaseException:
            os.close(self._fd)
            raise
        if self._behind:
            log.error("%s", behind(self._path, self._behind))

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> int:
        while True:
            if not os.path.exists(self._path):
                # Somebody else may be making it: whoever comes second takes the other one's, which is written to.
                with contextlib.suppress(FileExistsError):
                    write_file(self._kernel, self._path, list(see_store(self._kernel)), new=True)
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
            except OSError as e:
                raise Unavailable(f"witness {self._path} cannot be opened: {e.strerror}: name a file") from e
            try:
                if self._compact(fd):
                    # Written anew: this one is nobody's any more.
                    os.close(fd)
                    continue
                fcntl.flock(fd, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            # Somebody has just written it anew.
            os.close(fd)

    def _compact(self, fd: int) -> bool:
        """Write the file anew when it has grown; not while others append to it, nor before all of it could be read."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not os.path.samestat(os.fstat(fd), os.stat(self._path)):
            return True
        data = _read_all(fd, 0)
        if data.count(b"\n") < COMPACT_FROM:
            return False
        known = parse_witness(self._kernel, self._path, data)
        few = known.live < max(COMPACT_FROM, len(known.sessions))
        if few or known.unread or known.store != self._kernel.store.id or known.epoch != self._kernel.store.epoch:
            return False
        write_file(self._kernel, self._path, list(known.kept()))
        return True

    def _read(self) -> Witness:
        data = _read_all(self._fd, 0)
        if not data.endswith(b"\n"):
            # First: nothing is written to what is no witness.
            parse_witness(self._kernel, self._path, data)
            # A killed process, or a crash, has left half a line: it ends here.
            append_line(self._fd, b"\n", self._path)
            data = _read_all(self._fd, 0)
        self._offset, self._lines = len(data), data.count(b"\n")
        return parse_witness(self._kernel, self._path, data)

    def _mend(self) -> None:
        """A line that was cut short is written once more if the store says the same; what cannot be read is told."""
        for number, line in list(self._known.unread.items()):
            found = list(self._said(line)) if _is_torn(line) else []
            for one in (*found, *([Mended(hashlib.sha256(line).hexdigest())] if found else [])):
                append_line(self._fd, signed_line(self._kernel, one), self._path)
            lost = typed(f"verify --all --witness {quoted(self._path)}")
            what = "what it said was read from the store again" if found else f"what it said is lost: {lost}"
            how = "was cut short" if _is_torn(line) else "was changed"
            log.warning("witness %s, line %d %s: %s", self._path, number, how, what)
        self._catch_up()

    def _said(self, line: bytes) -> Iterator[Seen]:
        """What a line said that was cut short, if the store has just that."""
        speaks, store = _SPEAKS_OF.match(line), self._kernel.store
        with contextlib.suppress(PerdureError, msgspec.DecodeError):
            if speaks is not None:
                session, branch = (msgspec.json.decode(b'"' + name + b'"', type=str) for name in speaks.groups()[:2])
                heads = [(session, branch, int(speaks[3]), int(speaks[4]))]
            else:
                # It was written for the commit of one of the sessions that were written last.
                rows = store.sessions(newest=True, limit=AT_OPEN)
                heads = [(row.id, head.branch, head.line, head.step) for row in rows for head in row.heads]
            for session, branch, at, step in heads:
                one = see(self._kernel, session, branch, at, step, life_of(self._kernel, session))
                if one is not None and _agree(b"[" + msgspec.json.encode(one[:6])[:-1], line):
                    yield one

    def _compare(self) -> list[Finding]:
        """What the store lacks; cheap unless it has a new epoch."""
        known, epoch = self._known, self._kernel.store.epoch
        found = [one for one in known.compare_file(self._kernel.store.id) if one.kind == "lost"]
        if found:
            return found
        try:
            found = list(dict.fromkeys(known.find_lost(AT_OPEN if known.epoch == epoch else None)))
        except Corrupted as e:
            # Damage is not a loss: whoever opens the session is told.
            log.warning("the store could not be compared with the witness %s: %s", self._path, e)
            return []
        if not found and known.epoch != epoch:
            append_line(self._fd, signed_line(self._kernel, Renewed(epoch, self._kernel.clock.wall())), self._path)
        return found

    # -- before something is written --------------------------------------------------------------------------------

    def check(self, session: str | None = None) -> None:
        """Raise ``BehindWitness`` when the store lacks what the witness saw, of this session or of others."""
        epoch = self._kernel.store.epoch
        if not self._behind and (session is None or self._checked.get(session) == epoch):
            return
        with self._reading:
            accepted = self._known.accepted
            self._catch_up()
            if self._behind and self._known.accepted != accepted:
                self._behind, self._checked = self._compare(), {}
            if not self._behind and session is not None:
                entries = self._known.of_session(session, AT_FIRST_USE)
                self._behind = list(find_lost(self._kernel, session, entries))
                self._checked[session] = epoch
        if self._behind:
            raise behind(self._path, self._behind)

    def _catch_up(self) -> None:
        """Read what was appended since, by whomever."""
        data = self._rest + _read_all(self._fd, self._offset)
        self._offset += len(data) - len(self._rest)
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._lines += 1
            self._known.take(self._lines, line)

    # -- after something was written --------------------------------------------------------------------------------

    def note(self, point: Point, calls: Mapping[str, Called]) -> None:
        """Append one checkpoint, with what it says of effects; ``calls`` has those known."""
        env = point.envelope
        # A model's answer starts several at once.
        what = env.kind if env.kind in _OF_EFFECTS else Kind.STARTED.value
        said = env.x.get("effects", ()) if env.kind not in _OF_EFFECTS else (env.x.get("effect", ""),)
        told = tuple(
            Call(id, tool, what, slot, digest, kept and Kept(*kept, env.owner if kept.shared else ""))
            for id in said if id in calls for tool, slot, digest, kept in (calls[id],)
        )  # fmt: skip
        one = Seen(
            env.session, env.branch, env.line, env.step, env.id.hex(), point.digest.hex(), env.x.get(LIFE, 0),
            self._kernel.clock.wall(), told,
        )  # fmt: skip
        with self._lock:
            self._owed.append(signed_line(self._kernel, one))
            self._write_owed()

    def _write_owed(self) -> None:
        """One write for each line at the end of the file; what fails is written later, whole, on a line of its own."""
        while self._owed:
            line = self._owed[0]
            if self._torn:
                line = b"\n" + line + signed_line(self._kernel, Mended(hashlib.sha256(self._torn).hexdigest()))
            written, why = 0, "no space left"
            try:
                written = os.write(self._fd, line)
            except OSError as e:
                why = str(e)
            if written == len(line):
                self._owed.popleft()
                self._torn, self._failing = b"", False
                continue
            # What has been written of it cannot be taken back: others append, too.
            if not self._torn:
                self._torn = line[:written]
            self._fail(why)
            return

    def _fail(self, why: str) -> None:
        # The commit itself is durable: whoever waits for it must not be told otherwise.
        if len(self._owed) > OWED:
            self._owed.popleft()
            self._forgotten += 1
        if not self._failing:
            self._failing = True
            log.warning("the witness %s could not be written: %s; it is tried again", self._path, why)

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            if self._fd >= 0:
                self._write_owed()
                os.close(self._fd)
                self._fd = -1
            if lost := self._forgotten + len(self._owed):
                log.error("the witness %s was not told of %d commits: they could not be written", self._path, lost)
                self._owed.clear()
                self._forgotten = 0


def _is_torn(line: bytes) -> bool:
    """Whether a line ends too early; one that is whole and not right was changed."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return False


def _agree(core: bytes, line: bytes) -> bool:
    """Whether a line that was cut short may have said this, as far as it goes."""
    return line.startswith(core) or core.startswith(line)


def _read_all(fd: int, offset: int) -> bytes:
    parts: list[bytes] = []
    while data := os.pread(fd, 1 << 20, offset):
        parts.append(data)
        offset += len(data)
    return b"".join(parts)
