"""The tiered store: a cold store that is the truth, and a Redis in front of it that makes loads faster.

The cold store acknowledges commits and tells heads and leases. The hot tier holds states and rows, which never change,
and may vanish, lag, lie or hang at any moment: whatever it gives is used only if it ends in a row that the cold store
has, and is verified like everything else. Nothing that anybody waits for depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import model
from perdure.errors import InvalidInput, NotFound
from perdure.protocols import Boarded, Logged, Talking
from perdure.stores.tiered.hot import Hot, Kept, Told, view_of
from perdure.system.urls import TIERED, shown, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.errors import PerdureError
    from perdure.protocols import Board, Clock, Live, Store
    from perdure.stores.tiered.hot import View

PREFIX = "perdure"
MOST_BASES = 4096
"""Lines of which it is remembered where their hot state is."""
_END = 2**53
"""A step after every other."""


class _ColdStore:
    """What the cold store does by itself."""

    def __init__(self, cold: Store) -> None:
        self.cold = cold
        self.id = cold.id
        # Its own methods, not others that call them: what the hot tier has no part in costs nothing more.
        self.post, self.inbox = cold.post, cold.inbox
        self.look, self.starts, self.slice, self.artifacts = cold.look, cold.starts, cold.slice, cold.artifacts
        self.sessions, self.counts, self.changes, self.usage = cold.sessions, cold.counts, cold.changes, cold.usage
        self.acquire, self.renew, self.release = cold.acquire, cold.renew, cold.release
        self.blob_refs, self.dump, self.restore = cold.blob_refs, cold.dump, cold.restore
        # What the hot tier holds from an old epoch is never asked for again.
        self.renew_epoch = cold.renew_epoch
        if isinstance(cold, Logged):
            self.damaged, self.accept_loss, self.kept = cold.damaged, cold.accept_loss, cold.kept
            self.unreadable = cold.unreadable


class TieredStore(_ColdStore):
    """Implements :class:`perdure.protocols.Store` and :class:`perdure.protocols.Cached`.

    ``hot_ttl`` is how many seconds the hot tier holds what nobody writes; ``hot_timeout`` how many a reader waits for
    it at most; ``hot_bytes`` how large a state it may hold. ``?prefix=`` in its URL begins all its keys.
    """

    OPTIONS = ("hot_ttl", "hot_timeout", "hot_bytes")

    def __init__(
        self,
        hot_url: str,
        cold: Store,
        *,
        clock: Clock | None = None,
        hot_ttl: float = 3600.0,
        hot_timeout: float = 0.1,
        hot_bytes: int = 4 << 20,
    ) -> None:
        for name, value in (("hot_ttl", hot_ttl), ("hot_timeout", hot_timeout), ("hot_bytes", hot_bytes)):
            # Bad input is refused here, not in a thread where nobody sees it.
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidInput(f"{name} is a number above 0, not {value!r:.40}")
        super().__init__(cold)
        self.url = f"{TIERED}{shown(hot_url)},{cold.url}"
        self.promise = model.Promise(
            cold.promise.process_crash,
            cold.promise.power_loss,
            f"What the cold store promises holds; the hot tier only makes loads faster. {cold.promise.words}",
        )
        address, ours = take(hot_url, "prefix")
        self._prefix = f"{ours.get('prefix', PREFIX)}:hot:{cold.id}"
        self._bases: dict[bytes, int] = {}
        """Where the state of a line was that was hot when last asked for."""
        self._hot = Hot(address, timeout=float(hot_timeout), ttl=float(hot_ttl), most=int(hot_bytes))

    if TYPE_CHECKING:
        epoch: str
    else:

        @property
        def epoch(self) -> str:
            """The cold store's, which may change while it is open."""
            return self.cold.epoch

    @property
    def hot(self) -> str:
        """How the hot tier is: "answers", or "does not answer" and why."""
        return self._hot.state

    def live(self) -> Live:
        """Carries pieces of answers on their way: through the cold store, which all that read have in common."""
        assert isinstance(self.cold, Talking)
        return self.cold.live()

    def has_board(self) -> bool:
        """Whether the cold store's board was made."""
        return isinstance(self.cold, Boarded) and self.cold.has_board()

    def board(self) -> Board:
        """The cold store's board."""
        if not isinstance(self.cold, Boarded):
            raise InvalidInput(
                f"{self.url}: the cold store has no board for a fleet: use postgresql://… or sqlite:///… behind the "
                "hot tier"
            )
        return self.cold.board()

    def _key(self, session: str, line: int) -> bytes:
        return f"{self._prefix}:{self.cold.epoch}:line:{line}:{session}".encode()

    def _heads(self, session: str) -> bytes:
        return f"{self._prefix}:{self.cold.epoch}:heads:{session}".encode()

    # -- commits and loads -------------------------------------------------------------------------------------

    def append(self, batch: Sequence[model.Append]) -> list[model.Landed | PerdureError]:
        """Have the cold store make a batch durable; then tell the hot tier, without waiting for it."""
        answers = self.cold.append(batch)
        for item, answer in zip(batch, answers, strict=True):
            if type(answer) is model.Landed:
                self._hot.tell(Told(self._key(item.session, item.line), self._heads(item.session), item))
        return answers

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line at a step, most of it from the hot tier where it is known there.

        Without ``refs`` somebody maintains what is stored, and wants to see that.
        """
        found = self._loaded(session, line, step) if refs else None
        return self.cold.load(session, line, step, refs=refs) if found is None else found

    def _loaded(self, session: str, line: int, step: int | None) -> model.Bundle | None:
        view = self._view(session, line, step)
        if view is None:
            return None
        tip = view.tip
        if step is None and self._is_head(session, tip):
            return model.Bundle(view.base, view.rows, (), tip.step, tip=tip, hot=True)
        try:
            stored = self.cold.slice(session, line, tip.step, _END if step is None else tip.step)
        except NotFound:
            return None
        rows = stored.rows
        if not rows or (rows[0].step, rows[0].id, rows[0].digest) != (tip.step, tip.id, tip.digest):
            # Another past: an earlier session of the same name, or commits that the cold store lost.
            return None
        reached = rows[-1].step
        whole = reached == tip.step + len(rows) - 1 and reached == (stored.last if step is None else step)
        if not whole or any(pack.kind == model.ANCHOR for pack in stored.packs):
            return None
        return model.Bundle(view.base, view.rows + rows[1:], stored.packs, stored.last, tip=rows[-1], hot=True)

    def _is_head(self, session: str, tip: model.Row) -> bool:
        """Whether a branch ends there, by the cold store's word: it has nothing newer then, and need not be read."""
        row = self.cold.look(session)
        return row is not None and any(head[1:] == tip[:3] for head in row.heads)

    def _view(self, session: str, line: int, step: int | None) -> View | None:
        key = self._key(session, line)
        if step is not None and step < self._bases.get(key, 0):
            # Before the state that is hot: whoever goes through the past does not fetch that state each time.
            return None
        found = self._hot.line(key)
        view = view_of(line, *found) if found else None
        if view is not None and view.base is not None:
            if len(self._bases) >= MOST_BASES:
                self._bases.clear()
            self._bases[key] = view.base.hi
        return view if view is None or step is None else view.upto(step)

    # -- maintenance -------------------------------------------------------------------------------------------

    def rewrite(self, change: model.Rewrite) -> bool:
        """Do maintenance; the lines it was about, the hot tier forgets: what was dropped must not stay there."""
        done = self.cold.rewrite(change)
        if done:
            lines = {part.line for part in (*change.put, *change.thin, *change.drop)}
            lines.update(line for _, line, _ in change.discard)
            self._hot.forget([self._key(change.session, line) for line in sorted(lines)])
        return done

    def drop(self, session: str, token: int | None, reason: str, *, keep_waiting: bool = False) -> None:
        """Delete a session and leave a tombstone; the hot tier forgets it."""
        row = self.cold.look(session)
        self.cold.drop(session, token, reason, keep_waiting=keep_waiting)
        lines = row.lines if row else 0
        self._hot.forget([self._heads(session), *(self._key(session, line) for line in range(lines))])

    def close(self) -> None:
        """Release everything."""
        self._hot.close()
        self.cold.close()

    # -- the cache, as the session layer sees it ---------------------------------------------------------------

    def wants(self, session: str, line: int) -> bool:
        """Whether a state of this line would be kept."""
        return self._hot.wants(self._key(session, line))

    def keep(self, session: str, branch: str, tip: model.Row, make: Callable[[], model.Artifact]) -> None:
        """Have the hot tier hold a state, soon."""
        self._hot.keep(Kept(self._key(session, tip.line), self._heads(session), branch, tip, make))

    def doubt(self, session: str, line: int) -> None:
        """What the hot tier gave of this line is not what was written: it is to forget it."""
        self._hot.forget([self._key(session, line)])

    def remembered(self, session: str, branch: str) -> tuple[Store, int] | None:
        """What the hot tier alone knows of a branch."""
        heads = self._hot.fields(self._heads(session))
        line = heads.get(branch.encode(), b"")
        return (_HotOnly(self), int(line)) if line.isdigit() and len(line) < 16 else None


class _HotOnly(TieredStore):
    """The same store while its cold part cannot be reached: lines can be loaded, as far as the hot tier has them."""

    def __init__(self, whole: TieredStore) -> None:  # pyright: ignore[reportMissingSuperCall]
        _ColdStore.__init__(self, whole.cold)
        self.url = whole.url
        self.promise = whole.promise
        self._prefix = whole._prefix
        self._hot = whole._hot
        self._bases = {}
        self._doubted: set[tuple[str, int]] = set()

    def wants(self, session: str, line: int) -> bool:
        """Nothing is kept that the cold store has not confirmed."""
        return False

    def doubt(self, session: str, line: int) -> None:
        """Not to be used here any more; it may only be that the line it starts from is not known."""
        self._doubted.add((session, line))

    def load(self, session: str, line: int, step: int | None = None, *, refs: bool = True) -> model.Bundle:
        """What is needed to rebuild a line, from the hot tier alone."""
        view = None if (session, line) in self._doubted else self._view(session, line, step)
        if view is None:
            raise NotFound(f"the hot tier does not hold line {line} of session {session!r}")
        return model.Bundle(view.base, view.rows, (), view.tip.step, tip=view.tip, hot=True)
