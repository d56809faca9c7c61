"""Writers and a reader that go on while somebody harms the hot tier; afterwards all that was acknowledged is there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from tests.stores.tiered.tiers import eventually, said

if TYPE_CHECKING:
    import perdure
    from tests.stores.tiered.tiers import Tiers

WRITERS = 2
PACE = 0.01
"""Seconds between two turns of a writer or reader: while somebody else is waited for, they need no whole processor."""


class Work:
    """Each writer has a session and a database of its own; the reader looks at all of them, through both tiers."""

    def __init__(self, tiers: Tiers, **options: Any) -> None:
        self._tiers = tiers
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.acknowledged: dict[str, list[str]] = {f"s{n}": [] for n in range(WRITERS)}
        self.loads = 0
        self._dbs = [tiers.db(**options) for _ in range(WRITERS + 1)]
        workers = [(self._write, db, name) for db, name in zip(self._dbs, self.acknowledged, strict=False)]
        self._threads = [
            threading.Thread(target=self._safely, args=work) for work in [*workers, (self._read, self._dbs[-1])]
        ]

    @property
    def reader(self) -> perdure.Database:
        """The database of the reader."""
        return self._dbs[-1]

    def _safely(self, work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as e:
            self._errors.append(e)

    def _write(self, db: perdure.Database, name: str) -> None:
        done = self.acknowledged[name]
        while not self._stop.wait(PACE):
            with db.session(name) as s:
                # What was opened, through whatever tier, is what was acknowledged.
                assert [m["content"] for m in s.messages] == done
                for _ in range(7):
                    text = f"{name} {len(done)}"
                    s.messages.append({"role": "user", "content": text})
                    s.commit()
                    done.append(text)

    def _read(self, db: perdure.Database) -> None:
        while not self._stop.wait(PACE):
            for name, done in self.acknowledged.items():
                least = len(done)
                if least:
                    found = said(db, name)
                    # Nothing older than what had been acknowledged before we asked, and nothing that never was.
                    assert len(found) >= least
                    assert found == [f"{name} {n}" for n in range(len(found))]
                    self.loads += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.go_on()
        return self

    def go_on(self, commits: int = 15, loads: int = 5) -> None:
        """Wait until more was done by everybody."""
        wanted = {name: len(done) + commits for name, done in self.acknowledged.items()}
        more = self.loads + loads

        def enough() -> bool:
            self._check()
            return self.loads >= more and all(len(self.acknowledged[name]) >= n for name, n in wanted.items())

        eventually(enough, "everybody goes on")

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if exc[0] is None:
            self._check()

    def check(self) -> int:
        """Compare with the cold store alone; returns how many commits were acknowledged."""
        truth = self._tiers.truth()
        assert truth.verify().ok
        for name, done in self.acknowledged.items():
            assert said(truth, name) == done
            assert truth.look(name).heads[0].step == len(done)
            fresh = self._tiers.db()
            assert fresh.read(name).plain() == truth.read(name).plain()
            assert self.reader.read(name).plain() == truth.read(name).plain()
        return sum(len(done) for done in self.acknowledged.values())
