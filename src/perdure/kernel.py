"""What every part of the session layer works with: a store, blobs, keys, a clock, a form. No behaviour of its own."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from perdure.errors import Corrupted
from perdure.protocols import Cached
from perdure.record.codec import MSGPACK, Body, Decoder, Loaded
from perdure.state.document import STATE, plain
from perdure.state.migrations import no_path
from perdure.state.values import BYTES, STR, BlobRef

if TYPE_CHECKING:
    from perdure.model import Artifact
    from perdure.protocols import Blobs, Clock, Store
    from perdure.record.keys import Keys
    from perdure.state.migrations import Migrations

RENEW_AFTER = 600_000
"""Age in ms from which a streamed blob is put again before a commit names it: well below the collector's grace."""


class Kernel:
    """One open database, as its parts see it."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        keys: Keys,
        clock: Clock,
        form: int = MSGPACK,
        schema: str = "1.0.0",
        migrations: Migrations | None = None,
        keep_expired: int = 0,
    ) -> None:
        self.store = store
        self.cache = store if isinstance(store, Cached) else None
        """The store, when a cache in front of it holds states."""
        self.blobs = blobs
        self.keys = keys
        self.clock = clock
        self.form = form
        self.schema = schema
        self.migrations = migrations
        self.keep_expired = keep_expired
        """For how many ms a session that has expired is kept, so that it can be brought back; 0: not at all."""
        self.decode = Decoder(self.resolve)
        """Decodes plaintexts; blobs in them are looked up in this database."""

    @property
    def store_id(self) -> str:
        """What everything stored here is bound to."""
        return self.store.id

    def upgrade(self, loaded: Loaded) -> Loaded:
        """A loaded document with its state brought to this program's schema; the stored original stays."""
        if loaded.point is None or loaded.point.envelope.schema == self.schema:
            return loaded
        env = loaded.point.envelope
        if self.migrations is None:
            raise no_path(f"session {env.session!r}", env.schema, self.schema)
        state = self.migrations.upgrade(plain(loaded.doc[STATE]), env.schema, self.schema, f"session {env.session!r}")
        return Loaded({**loaded.doc, STATE: state}, loaded.point, loaded.loose, loaded.blobs)

    def packs_at(self, session: str, line: int, step: int) -> tuple[Artifact, ...]:
        """The packs that hold a step: those that a snapshot refers to are not always read along with it."""
        return self.store.slice(session, line, step, step).packs

    def keep(self, ref: str, held: bytes | BlobRef) -> None:
        """Make a blob durable, or renew it, right before a commit names it."""
        if isinstance(held, bytes):
            self.blobs.put(ref, held)
        elif held.put_at is not None and self.clock.monotonic() - held.put_at >= RENEW_AFTER:
            # Nobody has named it for so long that a collector may be about to take it: put it again.
            self.blobs.put_stream(self.blobs.get_stream(ref))
            held.put_at = self.clock.monotonic()

    def resolve(self, ref: BlobRef) -> Any:
        """The value a blob stands for; its content is verified by its name."""
        data = self.blobs.get(ref.ref)
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.ref:
            raise Corrupted(f"blob {ref.ref}", "the content does not match its name")
        if ref.form == BYTES:
            return data
        if ref.form == STR:
            return data.decode()
        return self.decode(Body(MSGPACK, data), f"blob {ref.ref}")
