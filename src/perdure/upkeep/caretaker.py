"""Who looks after an open database: its leases are renewed, lines that have grown are packed, a witness is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.upkeep.background import Heartbeat, Housekeeper
from perdure.upkeep.compaction import PACK_MIN, PACK_ROWS

if TYPE_CHECKING:
    import os

    from perdure.kernel import Kernel
    from perdure.model import Lease
    from perdure.record.commit import Point
    from perdure.session.journal import Journal


class Caretaker:
    """The background work of one database; its handles tell it what they do."""

    def __init__(
        self, kernel: Kernel, lease_ttl: int, *, maintain: bool, witness: str | os.PathLike[str] | None
    ) -> None:
        self.lease_ttl = lease_ttl
        """Milliseconds a lease lives without being renewed."""
        self.heartbeat = Heartbeat(kernel, lease_ttl)
        self._housekeeper = Housekeeper(kernel)
        self._maintain = maintain
        self._closed = False
        self._witness = None
        if witness is not None:
            from perdure.upkeep.witness import LiveWitness

            self._witness = LiveWitness(kernel, witness)

    def hold(self, lease: Lease) -> None:
        """Keep a lease alive from now on."""
        self.heartbeat.add(lease)

    def drop(self, lease: Lease) -> None:
        """No longer keep a lease alive."""
        self.heartbeat.remove(lease)

    def landed(self, point: Point) -> None:
        """A checkpoint is durable."""
        if self._witness is not None:
            self._witness.note(point)

    def committed(self, journal: Journal) -> None:
        """A commit is durable: its line may have grown enough to be packed."""
        if not self._maintain:
            return
        self._housekeeper.stir()
        if journal.unpacked >= PACK_ROWS and journal.point is not None:
            journal.unpacked = 0
            self._housekeeper.request(journal.id, journal.line, PACK_ROWS)

    def released(self, journal: Journal) -> None:
        """A handle is done with its session."""
        if journal.lease is not None:
            self.drop(journal.lease)
        if self._maintain and journal.unpacked >= PACK_MIN and journal.point is not None and not self._closed:
            self._housekeeper.request(journal.id, journal.line, PACK_MIN)

    def close(self) -> None:
        """Finish packing, let leases go."""
        self._closed = True
        self.heartbeat.close()
        self._housekeeper.close()
        if self._witness is not None:
            self._witness.close()
