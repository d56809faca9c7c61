"""Blobs in a bucket: S3, Google Cloud Storage, Azure, or whatever speaks as one of them.

Buckets have no locks, and nothing is deleted on a condition. So a writer who finds its content there and a collector
who is about to delete it meet by marks: each first writes its own and then looks for the other's. A server that shows
what was written before (all of these do) shows at least one of them the other. A writer that sees the collector's mark
uploads the content anew, under a name that was never used, so that no deletion that is still on its way can hit it.
``docs/explanation/storage.md`` has the argument in full.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from typing import IO, TYPE_CHECKING

from perdure import faults
from perdure.blobs import _object_names as names
from perdure.blobs._object_client import PART, TIMEOUT, Client, place_of
from perdure.blobs._refs import check_content, check_ref, checked
from perdure.clock import SystemClock
from perdure.errors import Corrupted, HandleClosed, InvalidInput, LimitExceeded, NotFound
from perdure.urls import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.protocols import Clock

LEFTOVER = 3_600_000
"""Age in ms from which marks without a content are taken for left behind."""
LONG = 60_000
"""An upload that took longer than this many ms is renewed: its name still says when it began."""
PRECISION = 1000
"""To how many ms servers say when an object was written."""
KNOWN = 10_000
"""How many refs a handle remembers the place of."""
TRIES = 5


class ObjectBlobs:
    """Implements :class:`perdure.protocols.Blobs` on a bucket. Credentials come from the environment or ``config``.

    ``config`` holds settings as obstore names them (``aws_access_key_id``, ``google_service_account``, ...).
    """

    def __init__(
        self,
        url: str,
        store_id: str,
        *,
        clock: Clock | None = None,
        config: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.url = shown(url)
        self._store_id = store_id
        self._clock: Clock = clock or SystemClock()
        self._client = Client(place_of(url), config, self.url.partition("?")[0], timeout)
        self._places = _Places()
        self._closed = False
        # Looked at when opened: a wrong bucket shows at once, not when the first screenshot is taken.
        self._claimed = self._is_ours()

    # -- the protocol ------------------------------------------------------------------------------

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, renew it instead."""
        self._check()
        check_content(ref, data)
        self._put(ref, data, len(data))

    def put_stream(self, chunks: Iterable[bytes]) -> str:
        """Make a content durable that comes in pieces, or renew it; its ref.

        Its name is known only at its end, so it waits in a temporary file until then.
        """
        self._check()
        seen = hashlib.sha256()
        size = 0
        with tempfile.SpooledTemporaryFile(max_size=PART) as spool:
            for chunk in chunks:
                seen.update(chunk)
                size += len(chunk)
                spool.write(chunk)
            ref = seen.hexdigest()
            if size <= PART:
                spool.seek(0)
                self._put(ref, spool.read(), size)
            else:
                self._put(ref, spool, size)
        return ref

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        return b"".join(self.get_stream(ref))

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces, verified before its last one is given out."""
        self._check()
        check_ref(ref)
        return self._stream(ref)

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed; also clears what killed collectors left."""
        self._check()
        leftover = self._clock.wall() - LEFTOVER
        for ref, found in names.generations(self._client.list()).items():
            for gone in (each for each in found if each.size is None and each.time < leftover):
                self._client.delete([*gone.renewals, names.mark_of(gone.path)])
            times = [each.time for each in found if each.size is not None]
            if times:
                yield ref, max(times)

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms); True when deleted."""
        self._check()
        before = self._list(check_ref(ref))
        held = [each for each in before if each.size is not None]
        if not held or any(each.time >= unless_renewed_since for each in before):
            return False
        grace = self._clock.wall() - unless_renewed_since
        # Condemn what is there. Whoever renewed it before this shows in the next listing; whoever renews it after
        # this sees the mark, and relies on another generation.
        for each in held:
            self._client.write(names.mark_of(each.path), b"")
        faults.point("blobs.delete.condemned")
        seen = {each.name for each in held}
        known = {path for each in held for path in each.renewals}
        spared = False
        for each in self._list(ref):
            came = each.name not in seen or not known.issuperset(each.renewals)
            if came or each.time >= unless_renewed_since or self._is_young(each, grace):
                spared = True
                continue
            # The content first: while it is there, the mark must be.
            self._client.delete([each.path])
            faults.point("blobs.delete.content_gone")
            self._client.delete([*each.renewals, names.mark_of(each.path)])
        self._places.forget(ref)
        return not spared

    def close(self) -> None:
        """No further use."""
        self._closed = True
        self._client.close()

    # -- parts -------------------------------------------------------------------------------------

    def _put(self, ref: str, content: bytes | IO[bytes], size: int) -> None:
        self._claim()
        if (known := self._places.of(ref)) and known[1] == size and self._renew(ref, known[0]):
            return
        usable = (each for each in self._list(ref) if each.usable and each.size == size)
        if (there := next(usable, None)) and self._renew(ref, there.path):
            return
        for _ in range(TRIES):
            began = self._clock.wall()
            path = names.new_generation(ref, began)
            if not isinstance(content, bytes):
                content.seek(0)
            faults.point("blobs.put.before_upload")
            self._client.write(path, content)
            faults.point("blobs.put.after_upload")
            if self._clock.wall() - began <= LONG or self._renew(ref, path):
                self._places.remember(ref, path, size)
                return
        raise LimitExceeded(f"blob {ref}: each upload took longer than the grace period of the collector: raise it")

    def _renew(self, ref: str, path: str) -> bool:
        """Say that somebody relies on this generation; False when a collector was first."""
        mine = names.renewal_of(path, self._clock.wall())
        self._client.write(mine, b"")
        faults.point("blobs.renew.written")
        found = next((each for each in self._list(ref) if each.path == path), None)
        if found is None or not found.usable:
            self._places.forget(ref)
            return False
        assert found.size is not None
        self._places.remember(ref, path, found.size)
        # One is enough: those before ours say nothing more than ours does.
        self._client.delete([other for other in found.renewals if other < mine])
        return True

    def _is_young(self, each: names.Generation, grace: int) -> bool:
        """Whether the server saw it put within the grace period, whatever the clocks of our machines say."""
        return isinstance(self._clock, SystemClock) and each.age + PRECISION < grace

    def _stream(self, ref: str) -> Iterator[bytes]:
        where = f"blob {ref} in {self.url}"
        damaged = False
        tried: set[str] = set()
        for _ in range(TRIES):
            path, size = self._find(ref, tried)
            if not path:
                break
            started = False
            try:
                for chunk in checked(ref, where, self._parts(path, size)):
                    started = True
                    yield chunk
            except NotFound:
                # A collector took this generation since it was listed; there is another one if anybody relies on it.
                if started:
                    raise
            except Corrupted:
                if started:
                    raise
                damaged = True
            else:
                return
            self._places.forget(ref)
            tried.add(path)
        if damaged:
            raise Corrupted(where, "this blob is not what was written")
        raise NotFound(f"there is no blob {ref} in {self.url}")

    def _find(self, ref: str, tried: set[str]) -> tuple[str, int]:
        if known := self._places.of(ref):
            return known
        found = [each for each in self._list(ref) if each.size is not None and each.path not in tried]
        # Condemned ones are as good to read, as long as they are there.
        for each in sorted(found, key=lambda each: each.condemned):
            assert each.size is not None
            self._places.remember(ref, each.path, each.size)
            return each.path, each.size
        return "", 0

    def _parts(self, path: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, PART):
            yield self._client.read(path, start, min(start + PART, size))

    def _list(self, ref: str) -> list[names.Generation]:
        return names.generations(self._client.list(names.folder_of(ref))).get(ref, [])

    # -- whose it is -------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether the prefix is this store's; False while it is nobody's."""
        try:
            owner = self._client.read(names.OWNER)
        except NotFound:
            return False
        if owner != self._store_id.encode():
            raise InvalidInput(
                f"{self.url} holds the blobs of another store ({owner[:80].decode(errors='replace')!a}): "
                "give each store a prefix of its own, such as s3://bucket/name-of-the-store"
            )
        return True

    def _claim(self) -> None:
        """Before anything is put: two stores that begin at the same moment must not share the prefix."""
        if not self._claimed:
            self._client.create(names.OWNER, self._store_id.encode())
            self._claimed = self._is_ours()

    def _check(self) -> None:
        if self._closed:
            raise HandleClosed(f"{self.url}: these blobs were closed: open them again")


class _Places:
    """Where refs were last seen, so that most requests need no listing before; what it says may be outdated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def of(self, ref: str) -> tuple[str, int] | None:
        """The path and size of the content."""
        with self._lock:
            return self._places.get(ref)

    def remember(self, ref: str, path: str, size: int) -> None:
        """Note where a content is; the one noted longest ago is forgotten for it."""
        with self._lock:
            self._places.pop(ref, None)
            self._places[ref] = (path, size)
            if len(self._places) > KNOWN:
                self._places.popitem(last=False)

    def forget(self, ref: str) -> None:
        """It is no longer there."""
        with self._lock:
            self._places.pop(ref, None)
