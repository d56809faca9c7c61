"""Every method of the store protocol, and of the blobs', while answers get lost."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from perdure.errors import Conflict, OutcomeUnknown, PerdureError
from perdure.model import Artifact, Landed, Rewrite, Span
from perdure.testing.sealed_rows import commit, entry, write
from tests.campaigns.lost_answers.scene import LEASE_TTL, Wrong, case

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from perdure.model import Append
    from tests.campaigns.lost_answers.scene import Act, Scene

    Play = Generator[Act, Any, None]

MINUTE = 60_000


def _raised(answers: Sequence[Any], batch: Sequence[Append] = ()) -> Sequence[Any]:
    """Answers as they are; the first that is neither yes nor no is raised, once each is seen to name its own commit."""
    for item, answer in zip(batch, answers, strict=False):
        if isinstance(answer, OutcomeUnknown) and answer.id != item.id:
            raise Wrong("wrong", f"the outcome of {item.id.hex()} is unknown, and {answer.id.hex()!r} is named")
    for answer in answers:
        if isinstance(answer, PerdureError) and not isinstance(answer, Conflict):
            raise answer
    return answers


@case("store: append a batch", single=True, named=False)
def _append(x: Scene) -> Play:
    cursor = x.changes_so_far()
    one = commit(x.name, 0)
    two = commit(x.name, 1, one.id)
    wrong = commit(f"{x.name}-b", 4, b"nobody's id 1234")
    other = commit(f"{x.name}-c", 0)
    batch = [one, two, wrong, other]
    answers = yield lambda: _raised(x.store.append(batch), batch)
    landed = [isinstance(answer, Landed) for answer in answers]
    x.expect(landed, [True, True, False, True], "who landed")
    x.expect(x.ids(), [one.id.hex(), two.id.hex()], "rows")
    x.expect(x.ids(f"{x.name}-b"), [], "rows of the one that lost")
    x.expect(x.ids(f"{x.name}-c"), [other.id.hex()], "rows of the neighbour")
    seen = [c.id for c in x.truth.changes(cursor).items if c.session == x.name]
    x.expect(seen, [one.id, two.id], "changes")


@case("store: post a batch", single=True, named=False)
def _post(x: Scene) -> Play:
    first, second = entry("a", x.name), entry("b", x.name, b"other")
    yield lambda: _raised(x.store.post([first, second]))
    x.expect([e.key for e in x.truth.inbox(x.name)], ["a", "b"], "the inbox")


@case("store: acquire", named=False)
def _acquire(x: Scene) -> Play:
    lease = yield lambda: x.patiently(lambda: x.store.acquire(x.name, "me", int(LEASE_TTL * 1000)))
    row = x.truth.look(x.name)
    x.expect((row.lease.holder, row.lease.token), ("me", lease.token), "the lease")
    (landed,) = x.truth.append([commit(x.name, token=lease.token)])
    x.expect(type(landed), Landed, "a commit under the lease")
    x.store.release(lease)
    x.expect_free()
    later = x.truth.acquire(x.name, "you", MINUTE)
    x.expect(later.token > lease.token, True, "a later token is larger")


@case("store: renew", named=False)
def _renew(x: Scene) -> Play:
    lease = x.truth.acquire(x.name, "me", MINUTE)
    gone = x.truth.acquire(f"{x.name}-gone", "me", MINUTE)
    x.truth.release(gone)
    kept = yield lambda: x.store.renew([lease, gone], MINUTE)
    x.expect(kept, [True, False], "what was renewed")


@case("store: release", named=False)
def _release(x: Scene) -> Play:
    lease = x.truth.acquire(x.name, "me", MINUTE)
    yield lambda: x.store.release(lease)
    x.expect_free()
    x.truth.acquire(x.name, "you", MINUTE)
    x.store.release(lease)
    x.expect(x.truth.look(x.name).lease.holder, "you", "somebody else's lease")


@case("store: rewrite", named=False)
def _rewrite(x: Scene) -> Play:
    write(x.truth, x.name, 6)
    pack = Artifact("pack", 0, 1, 3, b"packed")
    done = yield lambda: x.store.rewrite(Rewrite(x.name, None, (pack,), (Span(0, 1, 3),)))
    # Done again it no longer applies; that it was done shows in what is there.
    x.expect(done or x.said is not None or x.cut, True, "whether it was done")
    x.expect([(a.kind, a.lo, a.hi) for a in x.truth.artifacts(x.name)], [("pack", 1, 3)], "artifacts")
    rows = x.truth.slice(x.name, 0, 0, 9).rows
    x.expect([bool(r.envelope) for r in rows], [True, False, False, False, True, True], "rows that are not thin")


@case("store: rewrite that drops", named=False)
def _drop_rows(x: Scene) -> Play:
    write(x.truth, x.name, 6)
    anchor = Artifact("anchor", 0, 1, 3, b"stands for them")
    yield lambda: x.store.rewrite(Rewrite(x.name, None, (anchor,), (Span(0, 3, 3),), (Span(0, 1, 2),)))
    steps = [r.step for r in x.truth.slice(x.name, 0, 0, 9).rows]
    x.expect(steps, [0, 3, 4, 5], "steps that are there")


@case("store: drop", named=False)
def _drop(x: Scene) -> Play:
    write(x.truth, x.name, 3)
    yield lambda: x.store.drop(x.name, None, "deleted")
    row = x.truth.look(x.name)
    x.expect((row.reason, row.heads), ("deleted", ()), "the tombstone")
    x.expect(x.ids(), [], "rows")
    write(x.truth, x.name, 1)
    x.expect_steps(1)


@case("store: restore", named=False, settles=True)
def _restore(x: Scene) -> Play:
    write(x.truth, f"{x.name}-from", 3)
    dump = x.truth.dump(f"{x.name}-from")
    dump = dump._replace(row=dump.row._replace(id=x.name))
    yield lambda: x.store.restore(dump)
    x.expect_steps(3)


@case("store: blobs", named=False)
def _blobs(x: Scene) -> Play:
    data = f"{x.name} ".encode() * 5000
    ref = hashlib.sha256(data).hexdigest()

    def put_and_get() -> bytes:
        x.db.kernel.blobs.put(ref, data)
        return x.db.kernel.blobs.get(ref)

    found = yield put_and_get
    x.expect(found, data, "the content")
    x.expect(x.direct.kernel.blobs.get(ref), data, "the content, directly")


@case("store: delete a blob", named=False)
def _delete_blob(x: Scene) -> Play:
    data = f"{x.name} goes ".encode() * 500
    ref = hashlib.sha256(data).hexdigest()
    x.direct.kernel.blobs.put(ref, data)
    yield lambda: x.db.kernel.blobs.delete(ref, x.clock.wall() + 3_600_000)
    x.expect([r for r, _ in x.direct.kernel.blobs.refs() if r == ref], [], "the blob")
