"""The witness: the newest checkpoint of every line, kept outside the store, against which a loss shows.

How its file is written and read, and how it is compared with a store; ``live_witness`` keeps it up to date.

A text file of JSON lines. First a header (store id, epoch, time, name of the key), then one line for each line of a
session, each input that waits in an inbox and each effect of late, then an end line with a digest over all before it
(an HMAC when keys are held). Behind it lines are appended, each with a digest of its own: one per commit of a live
witness, which is not synced (what a crash takes from it is only that much less to compare with), and those that say
that a loss was accepted, that the store has a new epoch, or what a line said that was cut short.

What was seen is never replaced by less: a smaller step, or another checkpoint in the same place, stands beside what was
seen before until the store has shown that both belong to one past.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import os
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from perdure.errors import (
    BehindWitness,
    Corrupted,
    Gone,
    NotFound,
    StoreFull,
    Unavailable,
    UnsupportedFormat,
)
from perdure.history.hydrate import origins
from perdure.history.lives import aside_id, life_of, tombstone_of
from perdure.record import codec
from perdure.record.tombstones import LIFE
from perdure.stores.listing import each_session
from perdure.system.commands import quoted, typed
from perdure.system.disk import write_whole
from perdure.upkeep.own_files import check_apart
from perdure.upkeep.verify import Finding

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from perdure.kernel import Kernel
    from perdure.model import SessionRow
    from perdure.stores.listing import Progress
    from perdure.upkeep.verify import Inspection

T = TypeVar("T")
PAGE = 500
VERSION = 2
EFFECTS_KEPT = 30 * 86_400
"""For how many seconds effects are kept in a witness that is written anew: a backup that is older knows them itself."""
LOOKS = 5
"""How often a session is looked at again that was written to while it was compared."""


class Kept(NamedTuple):
    """How what a call returns is kept, so that it is not paid for twice."""

    name: str
    ms: int
    """For how long."""
    shared: bool
    owner: str
    """Whose sessions share it; "" when none do."""


class Call(NamedTuple):
    """What a checkpoint says of an effect."""

    id: str
    tool: str
    what: str
    """The kind of the checkpoint: started, done, failed, ..."""
    slot: str = ""
    """Its place in the journal; "" when whoever noted it did not know, because another process had planned it."""
    digest: str = ""
    """Of tool and arguments."""
    kept: Kept | None = None
    """None for a call that declares no ``cache``."""


class Seen(NamedTuple):
    """A checkpoint that the witness saw at the end of its line."""

    session: str
    branch: str
    line: int
    step: int
    id: str
    digest: str
    life: int
    """Which of the session's lives it belongs to; see :mod:`perdure.history.lives`."""
    at: int
    """When it was seen (ms)."""
    calls: tuple[Call, ...] = ()


class _Note(msgspec.Struct, frozen=True, tag_field="note", tag=str.lower):
    """What is written as an object, by the name of its class."""


class Waited(_Note, frozen=True):
    """An input that waited in an inbox when the witness looked."""

    session: str
    key: str
    digest: str
    life: int
    at: int
    """When it was seen (ms)."""


class Effect(_Note, frozen=True):
    """The newest that the witness saw of an effect."""

    session: str
    branch: str
    line: int
    step: int
    id: str
    """Of the checkpoint that said it."""
    at: int
    call: Call


class Accepted(_Note, frozen=True):
    """Whoever answers for the store has accepted what was lost: what was seen before this is not asked for."""

    epoch: str
    at: int


class Renewed(_Note, frozen=True):
    """The store has a new epoch, and everything that was seen before is there."""

    epoch: str
    at: int


class Mended(_Note, frozen=True):
    """A line that was cut short has been written once more, or the store was asked what it said."""

    digest: str


_Object = Waited | Effect | Accepted | Renewed | Mended


class Witness:
    """What a witness knows, as read from its file, line by line."""

    def __init__(self, kernel: Kernel, path: str, header: _Header) -> None:
        self._kernel = kernel
        self.path = path
        self.store = header.store
        self.epoch = header.epoch
        self.sessions: dict[str, dict[tuple[int, int], Seen]] = {}
        """The furthest that was seen of each session, by life and line; who was noted last stands last."""
        self.beside: dict[tuple[str, str], Seen] = {}
        """By session and checkpoint: what does not fit to that by its number alone, and is to be asked for, too."""
        self.waited: list[Waited] = []
        self.effects: dict[tuple[str, str], Effect] = {}
        """By session and effect."""
        self.unread: dict[int, bytes] = {}
        """Lines that cannot be read, by number."""
        self.live = 0
        """Lines that were appended since the file was last written as a whole."""
        self.accepted = 0
        """How often a loss was accepted."""

    @property
    def seen(self) -> dict[tuple[str, int, int], Seen]:
        """The furthest that was seen, by session, life and line."""
        return {(id, *place): one for id, lines in self.sessions.items() for place, one in lines.items()}

    def take(self, number: int, line: bytes) -> None:
        """Take an appended line in; its number is for people to find it."""
        if not line:
            return
        self.live += 1
        found = self._open(line)
        if found is None:
            # Another process may have gone on right behind one that a crash has cut short.
            for at in _beginnings(line):
                if (found := self._open(line[at:])) is not None:
                    self.unread[number] = line[:at]
                    break
            else:
                self.unread[number] = line
        if found is not None:
            self.note(found)

    def _open(self, line: bytes) -> Seen | _Object | None:
        try:
            said, name, mac = msgspec.json.decode(line, type=tuple[msgspec.Raw, str, str])
            one = msgspec.json.decode(said, type=_Object if bytes(said).startswith(b"{") else Seen)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return one if _matches(self._kernel, name, line[: line.rindex(b',"')], mac, self.path) else None

    def note(self, one: Seen | _Object) -> None:
        """Add what a line says. Nothing that was seen is replaced by less."""
        match one:
            case Seen():
                self._see(one)
            case Waited():
                self.waited.append(one)
            case Effect():
                self._keep_effect(one)
            case Accepted():
                self.sessions, self.beside, self.waited, self.effects, self.unread = {}, {}, [], {}, {}
                self.epoch, self.store = one.epoch, self._kernel.store.id
                self.accepted += 1
            case Renewed():
                self.epoch = one.epoch
            case Mended():
                self.unread = {n: line for n, line in self.unread.items() if _sha(line) != one.digest}

    def _see(self, one: Seen) -> None:
        # Who was noted last stands last.
        lines = self.sessions[one.session] = self.sessions.pop(one.session, {})
        known = lines.pop((one.life, one.line), one)
        if one.step > known.step or one is known:
            known = one
        elif one[:6] != known[:6]:
            # It came late, or the store has been put back in between: it is asked for both.
            self.beside[one.session, one.id] = one
            self.beside[one.session, known.id] = known
        lines[one.life, one.line] = known
        for call in one.calls:
            self._keep_effect(Effect(one.session, one.branch, one.line, one.step, one.id, one.at, call))

    def _keep_effect(self, one: Effect) -> None:
        key = one.session, one.call.id
        if (known := self.effects.pop(key, None)) is not None and not one.call.slot:
            one = msgspec.structs.replace(one, call=one.call._replace(slot=known.call.slot))
        self.effects[key] = one

    def of_session(self, id: str, most: int | None = None) -> list[Seen]:
        """What was seen of a session, of at most so many lines, what was noted last at the beginning."""
        newest = list(islice(reversed(self.sessions.get(id, {}).values()), most))
        beside = (one for (session, _), one in self.beside.items() if session == id)
        return newest + [one for one in beside if one not in newest]

    def by_session(self) -> dict[str, SeenSession]:
        """What it saw, session by session."""
        found = {id: SeenSession(self.of_session(id), []) for id in self.sessions}
        for entry in self.waited:
            found.setdefault(entry.session, SeenSession([], [])).waited.append(entry)
        return found

    def compare_file(self, id: str, *, copied: bool = False) -> Iterator[Finding]:
        """Whether this is the store it was written for, and whether all of it can be read."""
        if self.store != id and not copied:
            what = f"it was written for store {self.store}, and this is {id}"
            yield Finding("lost", "", f"witness {self.path}", what)
        for number, line in self.unread.items():
            what = f"it cannot be read, and what it said is not compared: {line[:60]!r}"
            yield Finding("witness", "", f"witness {self.path}, line {number}", what)

    def find_lost(self, newest: int | None = None) -> Iterator[Finding]:
        """What the store has lost of all sessions, by a look at each; or of those noted last, the newest of each."""
        for id in islice(reversed(list(self.sessions)), newest):
            yield from find_lost(self._kernel, id, self.of_session(id, None if newest is None else 1))
        if newest is not None:
            for id in {session for session, _ in self.beside}:
                yield from find_lost(self._kernel, id, self.of_session(id, 0))

    def kept(self) -> Iterator[Seen | _Object]:
        """What is worth keeping when the file is written anew: not what has rightly ended since."""
        look, oldest = self._kernel.store.look, self._kernel.clock.wall() - EFFECTS_KEPT * 1000
        for id, lines in self.sessions.items():
            row = look(id)
            several = row is not None and row.heads and len({life for life, _ in lines}) > 1
            now = life_of(self._kernel, id) if several else 0
            yield from (one for one in lines.values() if one.life >= now and not _over(self._kernel, row, one))
        # What the store has shown to be of one past is vouched for by what came after it.
        yield from (one for one in self.beside.values() if list(find_lost(self._kernel, one.session, [one])))
        yield from (one for one in self.waited if not _over(self._kernel, look(one.session), one))
        yield from (one for one in self.effects.values() if one.at >= oldest)


def _over(kernel: Kernel, row: SessionRow | None, one: Seen | Waited) -> bool:
    """Whether it belongs to a life that has ended, as its tombstone says."""
    return row is not None and bool(row.reason) and not _compare_ended(kernel, row, one)


def _beginnings(line: bytes) -> Iterator[int]:
    at = 0
    while (at := min((i for i in (line.find(b'[["', at + 1), line.find(b"[{", at + 1)) if i > 0), default=0)) > 0:
        yield at


def _sha(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


# -- comparing --------------------------------------------------------------------------------------------------------


class SeenSession(NamedTuple):
    """What a witness saw of one session, to be compared with what the store has of it now."""

    heads: list[Seen]
    waited: list[Waited]

    def compare(self, kernel: Kernel, inspection: Inspection, waiting: Sequence[str]) -> Iterator[Finding]:
        """What an inspected session has lost; ``waiting`` are the keys of the inputs in its inbox."""
        life = inspection.life
        since = {head.line: head.step for head in reversed(self.heads) if life in (None, head.life)}
        for one in (*self.heads, *self.waited):
            if life is not None and one.life != life:
                # A life with a larger number began by the word of a tombstone.
                if one.life > life and (what := _compare_aside(kernel, one)):
                    yield _lost(one, what)
            elif isinstance(one, Seen):
                if what := _compare_head(one, inspection):
                    yield _lost(one, what)
            elif what := inspection.input(one.key, one.digest, since, one.at):
                yield _lost(one, f"{_saw(one)} waiting, and {what}")
        order = [one.key for one in self.waited if one.key in waiting and one.life == (life or 0)]
        if order != [key for key in waiting if key in order]:
            id = self.waited[0].session
            what = "its inputs wait in another order than the witness saw"
            yield Finding("inbox", id, f"session {id!r}, inbox", what)

    def compare_ended(self, kernel: Kernel, row: SessionRow | None) -> Iterator[Finding]:
        """What was lost with a session that is not there, unless a tombstone says that it has rightly ended."""
        for one in (*self.heads, *self.waited):
            if what := _compare_ended(kernel, row, one):
                yield _lost(one, what)


def find_lost(kernel: Kernel, id: str, entries: Iterable[Seen]) -> Iterator[Finding]:
    """What of this the store no longer has, by a look at each: nothing else of the session is read or verified."""
    row, life = kernel.store.look(id), None
    for one in entries:
        for _ in range(LOOKS):
            if row is None or not row.heads:
                what = _compare_ended(kernel, row, one)
                break
            if _is_there(kernel, id, one):
                what = ""
                break
            fresh = kernel.store.look(id)
            if fresh is not None and fresh.heads == row.heads:
                life = life_of(kernel, id) if life is None else life
                what = _compare_missing(kernel, row, life, one)
                break
            # It has ended, or gone on, while we looked.
            row, life = fresh, None
        else:
            continue
        if what:
            yield _lost(one, what)


def _compare_missing(kernel: Kernel, row: SessionRow, life: int, one: Seen) -> str:
    if one.life != life:
        return _compare_aside(kernel, one) if one.life > life else ""
    ends = [head.step for head in row.heads if head.line == one.line]
    now = f"line {one.line} ends at step {ends[0]}" if ends and ends[0] < one.step else "it is not there"
    return f"{_saw(one)}, and {now}"


def _is_there(kernel: Kernel, id: str, one: Seen | Effect) -> bool:
    """Whether a checkpoint is in the store, or was dropped by retention."""
    try:
        rows = kernel.store.slice(id, one.line, one.step, one.step).rows
    except Gone as e:
        return e.reason == "retention"
    except NotFound:
        return False
    said = one.digest if isinstance(one, Seen) else None
    return any(row.id.hex() == one.id and said in (None, row.digest.hex()) for row in rows)


def was_lost(kernel: Kernel, one: Effect) -> bool:
    """Whether the checkpoint that told of an effect is not in the store."""
    return not _is_there(kernel, one.session, one)


def _compare_head(one: Seen, inspection: Inspection) -> str:
    """What became of a checkpoint; "" when it is there, or was dropped by retention."""
    row = inspection.rows.get((one.line, one.step))
    if row is not None and (row.id.hex(), row.digest.hex()) == (one.id, one.digest):
        return ""
    if row is not None:
        return f"step {one.step} of line {one.line} is another checkpoint than the witness saw"
    if inspection.covers(one.line, one.step):
        return ""
    steps = [step for line, step in inspection.rows if line == one.line]
    now = f"line {one.line} ends at step {max(steps)}" if steps else f"there is no line {one.line}"
    return f"{_saw(one)}, and {now}"


def _compare_ended(kernel: Kernel, row: SessionRow | None, one: Seen | Waited) -> str:
    """What is wrong about a session that is not there; "" when it has rightly ended since."""
    if row is None or not row.reason:
        return f"{_saw(one)}, and there is no such session"
    stone = tombstone_of(kernel, row)
    if isinstance(stone, str):
        return f"{_saw(one)}, and the session was deleted by a tombstone that is not believed: {stone}"
    if one.life > stone.life:
        return _compare_aside(kernel, one)
    if one.life == stone.life and isinstance(one, Seen) and not stone.covers(one.line, one.step):
        return f"{_saw(one)}, and the session had ended before that by the word of its tombstone"
    return ""


def _compare_aside(kernel: Kernel, one: Seen | Waited) -> str:
    """What is wrong about a life that another one, of before, has taken the place of; "" when it is set aside."""
    id = aside_id(one.session, one.life)
    row = kernel.store.look(id)
    if row is None or not (row.heads or row.reason):
        return f"{_saw(one)}, and that life of the session is not there, nor set aside"
    if row.reason:
        stone = tombstone_of(kernel, row)
        return f"{_saw(one)}, and that life of the session was deleted: {stone}" if isinstance(stone, str) else ""
    return f"{_saw(one)}, and it is not set aside" if isinstance(one, Seen) and not _is_there(kernel, id, one) else ""


def _saw(one: Seen | Waited) -> str:
    return "the witness saw " + (
        f"step {one.step} of line {one.line}" if isinstance(one, Seen) else f"input {one.key!r:.60}"
    )


def _lost(one: Seen | Waited, what: str) -> Finding:
    where = f"session {one.session!r}, " + (f"branch {one.branch!r}" if isinstance(one, Seen) else "inbox")
    return Finding("lost", one.session, where, what)


def behind(path: str, found: Sequence[Finding]) -> BehindWitness:
    """The error that says what is missing and what to do."""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return BehindWitness(
        f"the store is behind its witness {path}: {found[0].where}: {found[0].what}{more}. Nothing was written, and "
        "reading goes on: put the newer store back; or, if that is lost for good (a restored backup, a promoted "
        f"replica), accept it: {typed(f'verify --all --witness {quoted(path)} --accept-loss')}",
        tuple(found),
    )


# -- the file ---------------------------------------------------------------------------------------------------------


class _Header(msgspec.Struct, tag_field="perdure", tag="witness"):
    v: int
    store: str
    epoch: str
    at: int
    key: str


class _End(msgspec.Struct):
    end: int
    digest: str


def write_witness(
    kernel: Kernel, path: str | os.PathLike[str], progress: Progress | None = None, *, accept_loss: bool = False
) -> int:
    """Write down the head of every branch of every session, and what waits in its inbox; returns how many heads.

    A file that knows of something the store has lost is not written to, unless the loss is accepted. One that others
    keep up to date is appended to, any other is written anew, atomically and durably.
    """
    where = os.fspath(path)
    known: Witness | None = None
    try:
        known = read_witness(kernel, where)
    except NotFound:
        pass
    except (Corrupted, UnsupportedFormat):
        if not accept_loss:
            raise
    if known is not None and not accept_loss:
        found = [*known.compare_file(kernel.store.id), *known.find_lost()]
        if found:
            raise behind(where, found)
    heads = 0

    def entries() -> Iterator[Seen | _Object]:
        nonlocal heads
        for one in see_store(kernel, progress):
            heads += isinstance(one, Seen)
            yield one

    with _alone(where) as fd:
        if fd is None:
            effects = known.effects.values() if known is not None and not accept_loss else ()
            try:
                write_file(kernel, where, [*entries(), *effects], new=not os.path.exists(where))
            except FileExistsError:
                # Somebody has just made it, and writes to it.
                return write_witness(kernel, path, progress, accept_loss=accept_loss)
        else:
            now = kernel.clock.wall()
            first = (Accepted if accept_loss else Renewed)(kernel.store.epoch, now)
            for one in (first, *entries()):
                append_line(fd, signed_line(kernel, one), where)
    return heads


@contextlib.contextmanager
def _alone(path: str) -> Generator[int | None]:
    """None when nobody else writes to the file, or there is none; else a descriptor to append to."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            # It is not there; or whoever writes it anew is told why that cannot be.
            yield None
            return
        try:
            alone = True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alone = False
                fcntl.flock(fd, fcntl.LOCK_SH)
            if not is_still(fd, path):
                # Somebody has just written it anew.
                continue
            yield None if alone else fd
            return
        finally:
            os.close(fd)


def is_still(fd: int, path: str) -> bool:
    """Whether a file that is open is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def see_store(kernel: Kernel, progress: Progress | None = None) -> Iterator[Seen | Waited]:
    """What there is to be seen in the whole store."""
    for number, row in enumerate(each_session(kernel.store, PAGE), start=1):
        lives = {env.x.get(LIFE, 0) for _, _, env in origins(kernel, row.id).values()}
        life = max(lives, default=0)
        for head in row.heads:
            if (one := see(kernel, row.id, head.branch, head.line, head.step, life)) is not None:
                yield one
        for entry in kernel.store.inbox(row.id, row.pending) if row.pending else ():
            yield Waited(row.id, entry.key, entry.digest.hex(), life, kernel.clock.wall())
        if progress is not None:
            progress(row.id, number)


def see(kernel: Kernel, session: str, branch: str, line: int, step: int, life: int) -> Seen | None:
    """A checkpoint as it is in the store; None when it is not."""
    now = kernel.clock.wall()
    try:
        rows = kernel.store.slice(session, line, step, step).rows
    except NotFound:
        return None
    return Seen(session, branch, line, step, rows[0].id.hex(), rows[0].digest.hex(), life, now) if rows else None


def write_file(kernel: Kernel, path: str, entries: Iterable[Seen | _Object], *, new: bool = False) -> None:
    """Write a witness as a whole; with ``new`` only where there is none."""
    name = kernel.keys.current
    header = _Header(VERSION, kernel.store.id, kernel.store.epoch, kernel.clock.wall(), name)
    lines = [msgspec.json.encode(header), *(msgspec.json.encode(one) for one in entries)]
    body = b"\n".join(lines) + b"\n"
    mac = _digest(kernel, name, body, path)
    body += msgspec.json.encode(_End(len(lines) - 1, mac)) + b"\n"
    with write_whole(path, new=new) as file:
        file.write(body)


def signed_line(kernel: Kernel, one: Seen | _Object) -> bytes:
    """A line to be appended."""
    name = kernel.keys.current
    body = b"[" + msgspec.json.encode(one) + b"," + msgspec.json.encode(name)
    return body + b',"' + _digest(kernel, name, body, "").encode() + b'"]\n'


def append_line(fd: int, line: bytes, path: str) -> None:
    """Append one line, whole: lines of several processes do not mix."""
    try:
        written = os.write(fd, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as e:
        kind = StoreFull if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else Unavailable
        raise kind(f"witness {path} cannot be written: {e.strerror}: make room there, or name another file") from e


def _digest(kernel: Kernel, name: str, data: bytes, path: str) -> str:
    return codec.digest(kernel.keys, name, b"witness\0", (data,), f"witness {path}").hex()


def read_witness(kernel: Kernel, path: str | os.PathLike[str]) -> Witness:
    """Read and verify a witness."""
    check_apart(kernel, path, "witness")
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            data = file.read()
    except FileNotFoundError as e:
        raise NotFound(
            f"there is no witness {where}: write one with "
            f"{typed(f'verify --all --witness {quoted(where)} --update-witness')}"
        ) from e
    except OSError as e:
        raise Unavailable(f"witness {where} cannot be read: {e.strerror}: name a file") from e
    return parse_witness(kernel, where, data)


def parse_witness(kernel: Kernel, where: str, data: bytes) -> Witness:
    """What the bytes of a file say."""
    lines = data.split(b"\n")
    try:
        header = msgspec.json.decode(lines[0], type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        what = "its first line is not that of a witness" if data else "it is empty, and no witness"
        raise Corrupted(f"witness {where}", f"{what}: was another file meant? One that is not there is made") from e
    if header.v != VERSION:
        raise UnsupportedFormat(
            f"witness {where}: version {header.v} is not known to this version: write it anew with "
            f"{typed('verify --all --witness NEWFILE --update-witness')}, or upgrade Perdure"
        )
    end = _find_end(where, lines)
    claim = _parse(where, end + 1, lines[end], _End)
    if not _matches(kernel, header.key, b"\n".join(lines[:end]) + b"\n", claim.digest, where):
        raise Corrupted(f"witness {where}", "the digest does not match")
    known = Witness(kernel, where, header)
    for number, line in enumerate(lines[1:end], start=2):
        known.note(_parse(where, number, line, _Object if line.startswith(b"{") else Seen))
    for number, line in enumerate(lines[end + 1 :], start=end + 2):
        known.take(number, line)
    return known


def _parse(where: str, number: int, line: bytes, of: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=of)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise Corrupted(f"witness {where}, line {number}", "it cannot be read") from e


def _find_end(where: str, lines: list[bytes]) -> int:
    for i, line in enumerate(lines):
        if line.startswith(b'{"end":'):
            return i
    raise Corrupted(f"witness {where}", "it is cut short")


def _matches(kernel: Kernel, name: str, data: bytes, mac: str, where: str) -> bool:
    return hmac.compare_digest(_digest(kernel, name, data, where).encode(), mac.encode())
