"""Mutations of records, for the file store: what somebody does who can compute a checksum."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.record.codec import ZERO
from perdure.stores.file import log as frames
from perdure.stores.file.records import Birth, Commit, Posted, Record, Rewritten, State, decode, encode
from perdure.stores.file.root import salt_of
from tests.campaigns.tamper.sealed_level import altered, forge_commit, forge_payload, forge_tail

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.campaigns.tamper.bytes_level import Mutation, Target


def records_of(path: Path) -> list[Record]:
    """The records of a log."""
    data = path.read_bytes()
    found = frames.scan(lambda size, offset: data[offset : offset + size], 0, len(data), salt_of(path.parent.name))
    return [decode(frame.kind, frame.body, str(path)) for frame in found]


def write_records(path: Path, records: list[Record]) -> None:
    """A log of these records, with all checksums right: each its own write, as most are."""
    salt, at, parts = salt_of(path.parent.name), 0, list[bytes]()
    for record in records:
        data, _ = frames.pack([encode(record)], at, salt)
        parts.append(data)
        at += len(data)
    path.write_bytes(b"".join(parts))


def _log(change: Callable[[Target, Path, list[Record]], str]) -> Mutation:
    def mutation(t: Target) -> str:
        path = t.rng.choice(t.files("log"))
        records = records_of(path)
        what = change(t, path, records)
        if what:
            write_records(path, records)
        return what

    mutation.__doc__ = change.__doc__
    return mutation


def _swap(t: Target, path: Path, records: list[Record]) -> str:
    """Two records trade places."""
    a, b = t.rng.sample(range(len(records)), 2)
    records[a], records[b] = records[b], records[a]
    return f"{type(records[a]).__name__} and {type(records[b]).__name__}"


def _drop(t: Target, path: Path, records: list[Record]) -> str:
    """A record is gone."""
    return f"{type(records.pop(t.rng.randrange(len(records)))).__name__} gone"


def _repeat(t: Target, path: Path, records: list[Record]) -> str:
    """A record is there twice."""
    record = t.rng.choice(records)
    records.insert(t.rng.randrange(len(records) + 1), record)
    return f"{type(record).__name__} twice"


def _cut(t: Target, path: Path, records: list[Record]) -> str:
    """The newest records are gone, at a clean edge."""
    del records[t.rng.randrange(1, len(records)) :]
    return f"{len(records)} left"


def _move(t: Target, path: Path, records: list[Record]) -> str:
    """A record of another session."""
    others = [p for p in t.files("log") if p != path]
    record = t.rng.choice(records_of(t.rng.choice(others)))
    records.insert(t.rng.randrange(1, len(records) + 1), record)
    return f"{type(record).__name__} from elsewhere"


def _alter(t: Target, path: Path, records: list[Record]) -> str:
    """A field is another one: a little off, or that of another record."""
    at = t.rng.randrange(len(records))
    record = records[at]
    name = t.rng.choice(record.__struct_fields__)
    value = getattr(record, name)
    others = [getattr(other, name) for other in records if type(other) is type(record)]
    new = altered(t.rng, value, others)
    if new == value:
        return ""
    records[at] = msgspec.structs.replace(record, **{name: new})
    return f"{name} of {type(record).__name__}"


def _swap_fields(t: Target, path: Path, records: list[Record]) -> str:
    """Fields of two commits trade places."""
    places = [i for i, record in enumerate(records) if isinstance(record, Commit)]
    if len(places) < 2:
        return ""
    names = t.rng.choice([("payload",), ("envelope",), ("digest",), ("id",), ("envelope", "payload"), ("branch",),
                          ("id", "digest", "envelope", "payload"), ("line", "step"), ("starts",)])  # fmt: skip
    i, j = t.rng.sample(places, 2)
    a, b = records[i], records[j]
    records[i] = msgspec.structs.replace(a, **{name: getattr(b, name) for name in names})
    records[j] = msgspec.structs.replace(b, **{name: getattr(a, name) for name in names})
    return "" if (records[i], records[j]) == (a, b) else f"{names}"


def _artifacts(t: Target, path: Path, records: list[Record]) -> str:
    """Artifacts trade bodies, move, or are of another session."""
    logs = t.files("log")
    source = records_of(t.rng.choice(logs))
    bodies = [put for record in source if isinstance(record, Rewritten) for put in record.put]
    places = [i for i, record in enumerate(records) if isinstance(record, Rewritten) and record.put]
    if not places or not bodies:
        return ""
    at, other = t.rng.choice(places), t.rng.choice(bodies)
    record: Any = records[at]
    nth = t.rng.randrange(len(record.put))
    name = t.rng.choice(["body", "lo", "hi", "line", "kind", "refs", "blobs"])
    put = record.put[nth]._replace(**{name: getattr(other, name)})
    if put == record.put[nth]:
        return ""
    records[at] = msgspec.structs.replace(record, put=(*record.put[:nth], put, *record.put[nth + 1 :]))
    return f"{name} of {put.kind}"


def _forge_state(t: Target, path: Path, records: list[Record]) -> str:
    """A record that overrides pointers, or drops rows and artifacts."""
    commits = [record for record in records if isinstance(record, Commit)]
    if not commits:
        return ""
    last = commits[-1]
    if t.rng.random() < 0.5:
        target = t.rng.choice(commits)
        from perdure.model import Head

        head = Head(target.branch, target.line, target.step, target.id)
        lines = max(c.line for c in commits) + 1
        records.append(
            State(last.owner, last.status, last.at, last.at, None, (head,), "", 0, lines, last.ordinal, 0, 9)
        )
        return f"heads: {target.branch} at step {target.step}"
    from perdure.model import Span

    lo = t.rng.choice(commits).step
    span = Span(last.line, lo, lo + t.rng.randrange(4))
    records.append(Rewritten(thin=(span,)) if t.rng.random() < 0.5 else Rewritten(drop=(span,)))
    return f"thin or dropped: {span}"


def _old_record(t: Target, path: Path, records: list[Record]) -> str:
    """The records of an earlier moment behind those of now, or in their place."""
    old = t.old(path)
    if old is None:
        return ""
    then = records_of(old)
    record = t.rng.choice(then)
    records.insert(t.rng.randrange(1, len(records) + 1), record)
    return f"{type(record).__name__} of {old.parents[4].name}"


def _forge_seal(t: Target, path: Path, records: list[Record]) -> str:
    """Another header or content for sealed bytes: versions, flags, sizes, bombs, no key."""
    at = t.rng.randrange(len(records))
    record = records[at]
    what = ""
    match record:
        case Commit() if record.payload:
            what, payload = forge_payload(t.rng, record.payload)
            records[at] = msgspec.structs.replace(record, payload=payload)
        case Posted() if record.body:
            what, body = forge_tail(t.rng, record.body)
            records[at] = msgspec.structs.replace(record, body=body)
        case Rewritten() if record.put:
            what, body = forge_tail(t.rng, record.put[0].body)
            records[at] = msgspec.structs.replace(record, put=(record.put[0]._replace(body=body), *record.put[1:]))
        case _:
            return ""
    return "" if records[at] == record else f"{what} of {type(record).__name__}"


def _id(t: Target) -> str:
    return json.loads((t.folder / "agents" / "perdure.json").read_bytes())["id"]


def _transplant_log(t: Target, path: Path, records: list[Record]) -> str:
    """A session of another store under the same key, as a whole."""
    records[:] = records_of(t.foreign(path))
    return path.parent.name


def _transplant_record(t: Target, path: Path, records: list[Record]) -> str:
    """A record of another store under the same key, in the place of one of its kind."""
    record = t.rng.choice(records_of(t.foreign(path)))
    places = [i for i, one in enumerate(records) if type(one) is type(record)]
    if isinstance(record, Commit):
        places = [i for i in places if (records[i].line, records[i].step) == (record.line, record.step)]  # pyright: ignore
    if not places or isinstance(record, Birth):
        return ""
    records[t.rng.choice(places)] = record
    return type(record).__name__


def _roll_back(t: Target, path: Path, records: list[Record]) -> str:
    """A whole session as it was at an earlier moment."""
    old = t.old(path)
    then = records_of(old) if old is not None else records
    if then == records:
        return ""
    records[:] = then
    return "an earlier moment"


def _replay(t: Target, path: Path, records: list[Record]) -> str:
    """An input that was posted comes once more, behind all."""
    posts = [record for record in records if isinstance(record, Posted) and record.body]
    if not posts:
        return ""
    records.append(t.rng.choice(posts))
    return "an input"


def _forge_deletion(t: Target, path: Path, records: list[Record]) -> str:
    """A session has ended by the word of a tombstone that nobody wrote; or an input is gone."""
    posts = [record for record in records if isinstance(record, Posted)]
    if posts and t.rng.random() < 0.5:
        records.remove(t.rng.choice(posts))
        return "an input"
    ended = State("", "expired", 0, t.original.now + 1, None, (), "expired", 0, 0, 0, 0, len(posts))
    records[1:] = [ended]
    return "a session"


def _forge_commit(t: Target, path: Path, records: list[Record]) -> str:
    """A checkpoint that says something else, sealed without the key; in place of one, or behind all."""
    commits = [record for record in records if isinstance(record, Commit) and record.envelope]
    if not commits:
        return ""
    record = t.rng.choice(commits)
    parents = [c for c in commits if (c.line, c.step) == (record.line, record.step - 1)]
    parent = parents[0].digest if parents else ZERO
    what, envelope, digest, payload = forge_commit(t.rng, _id(t), record.envelope, parent, record.digest)
    records[records.index(record)] = msgspec.structs.replace(record, envelope=envelope, digest=digest, payload=payload)
    return what


def _root(t: Target) -> str:
    """Identity, tokens and leases, with right checksums."""
    what = t.rng.choice(["id", "epoch", "format", "token", "lease"])
    if what == "token":
        raw = b"pdT1" + t.rng.choice([0, 1, 2**63]).to_bytes(8, "little")
        path = t.folder / "agents" / "token"
        data = bytearray(path.read_bytes())
        data[0:16] = raw + zlib.crc32(raw).to_bytes(4, "little")
        path.write_bytes(data)
    elif what == "lease":
        a, b = t.rng.sample(t.files("lease"), 2)
        a.write_bytes(b.read_bytes())
    else:
        path = t.folder / "agents" / "perdure.json"
        said = json.loads(path.read_bytes())
        said[what] = 2 if what == "format" else "0123456789abcdef"
        said["check"] = zlib.crc32(f"{said['format']}/{said['id']}/{said['epoch']}".encode())
        path.write_bytes(json.dumps(said).encode())
    return what


RECORDS: dict[str, Mutation] = {
    "records swapped": _log(_swap),
    "record dropped": _log(_drop),
    "record repeated": _log(_repeat),
    "tail cut": _log(_cut),
    "record moved": _log(_move),
    "field altered": _log(_alter),
    "fields swapped": _log(_swap_fields),
    "artifact altered": _log(_artifacts),
    "state forged": _log(_forge_state),
    "old record": _log(_old_record),
    "seal forged": _log(_forge_seal),
    "commit forged": _log(_forge_commit),
    "root forged": _root,
    "input replayed": _log(_replay),
    "session transplanted": _log(_transplant_log),
    "row transplanted": _log(_transplant_record),
    "session rolled back": _log(_roll_back),
    "deletion forged": _log(_forge_deletion),
}
