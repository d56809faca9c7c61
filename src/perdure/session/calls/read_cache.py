"""Results that are kept for a while, so that nobody pays for them twice: of reads, and of effects that declare it.

A session keeps them in its own book. Those that all sessions of one owner share are each in a small session of their
own, which expires by itself. An effect claims its entry there before it is made, so that of two sessions that ask at
once one pays: a claim lasts until there is an outcome, or until a result would no longer be kept. No owner ever sees
another one's: the owner is part of the name, and is compared with the verified checkpoint.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import Conflict, Corrupted, PerdureError, Unavailable
from perdure.history.hydrate import load_head, look
from perdure.model import INTERNAL, MAIN, Kind
from perdure.record.codec import Settings
from perdure.session.calls.claimants import Stands, claimed
from perdure.session.calls.records import PROBLEM
from perdure.session.journal import Journal
from perdure.session.tools.call_state import WRITES
from perdure.state.document import STATE, plain
from perdure.state.values import same
from perdure.system.flow import Do, Flow

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.kernel import Kernel
    from perdure.session.tools.declaration import Tool
    from perdure.state.document import TrackedDict

PREFIX = INTERNAL
"""Begins the ids of these sessions."""
CLAIM = "claim"
"""Under this such a session says which effect is about to make the call, or has begun it."""
DEFAULTS = "defaults"
"""Under this what is kept has those arguments of its call that were as their defaults."""
TRIES = 100
"""How often a claim is made anew because somebody else has written to the same entry meanwhile."""
MOST = 200
"""Results that a session keeps for itself; those whose time is over soonest give way."""


def cache_id(owner: str, digest: str) -> str:
    """The session that holds a result: named by whose it is, and by tool, version and canonical arguments."""
    return INTERNAL + hashlib.sha256(f"{owner}\0{digest}".encode()).hexdigest()[:40]


def declared(tool: Tool, digest: str, args: dict[str, Any]) -> dict[str, Any]:
    """How the result of a call is to be kept: under which name, for how long and for whom.

    A key tells calls with the same arguments apart, here as elsewhere. What the digest leaves out stands beside it: a
    default may change.
    """
    assert tool.cache is not None
    left = {name: args[name] for name in tool.by_default(args)}
    more = {DEFAULTS: left} if left else {}
    name = digest if tool.key is None else hashlib.sha256(f"{digest}\0{tool.key}".encode()).hexdigest()[:32]
    return {"name": name, "for": int(tool.cache * 1000), "shared": tool.cache_scope == "shared", **more}


def is_of(kept: Any, wanted: dict[str, Any]) -> bool:
    """Whether what is kept is of just this call: what it had by default is no other than what it has now."""
    had, has = kept.get(DEFAULTS, {}), wanted.get(DEFAULTS, {})
    return all(same(had[name], has[name]) for name in had.keys() & has.keys())


def is_fresh(kernel: Kernel, kept: Any) -> bool:
    """Whether a result is still to be given.

    One from the future was kept by a clock that is ahead of ours, or ours was set back: nobody knows its age. It is
    believed as long as the clocks differ by less than its own time, which bounds how old it can be.
    """
    return kept is not None and abs(kernel.clock.wall() - kept["at"]) < kept["for"]


def _defaults(wanted: dict[str, Any]) -> dict[str, Any]:
    return {DEFAULTS: wanted[DEFAULTS]} if DEFAULTS in wanted else {}


class Claim(NamedTuple):
    """Who is about to make a shared call, or has begun it."""

    session: str
    effect: str
    until: int
    """When it ends by time (ms), if there is no outcome before."""


def _hit_of(record: dict[str, Any], claim: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a call that is done where it was claimed."""
    hit = {"result": record["result"], "at": record.get("cache", {}).get("at", claim["at"]), "for": wanted["for"]}
    more = {name: record[name] for name in (PROBLEM, WRITES) if record.get(name)}
    return {**hit, "effect": record["id"], **more}


def claim_of(kernel: Kernel, owner: str, name: str) -> Claim | None:
    """The claim to a shared call; None when there is none, or it has ended by an outcome or by time. Blocks."""
    try:
        loaded = load_head(kernel, look(kernel, cache_id(owner, name)), MAIN)
    except PerdureError:
        return None
    kept: dict[str, Any] = plain(loaded.doc[STATE].get("vars", {}))
    claim: dict[str, Any] | None = kept.get(CLAIM)
    if claim is None or not is_fresh(kernel, claim) or ("result" in kept and is_fresh(kernel, kept)):
        return None
    if claimed(kernel, claim["session"], claim["effect"]).stands in (Stands.DONE, Stands.NOT_MADE, Stands.LEFT):
        return None
    return Claim(claim["session"], claim["effect"], claim["at"] + claim["for"])


class ReadCache:
    """The results that a session keeps, or finds with its owner's other sessions."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def fresh(self, kept: Any) -> bool:
        """Whether a result is still to be given; see :func:`is_fresh`."""
        return is_fresh(self._journal.kernel, kept)

    def find(self, wanted: dict[str, Any]) -> Flow[dict[str, Any] | None]:
        """What a call returned lately, in this session or in another one of the same owner."""
        hit: Any = plain(self._journal.book.get("cache", {}).get(wanted["name"]))
        if not self.gives(hit, wanted) and wanted["shared"]:
            hit = yield Do(self.shared, (wanted["name"],))
        return hit if self.gives(hit, wanted) else None

    def gives(self, kept: Any, wanted: dict[str, Any]) -> bool:
        """Whether a result is of just this call, and still to be given."""
        return self.fresh(kept) and is_of(kept, wanted)

    def keep(self, wanted: dict[str, Any], result: Any, problem: str = "", effect: str = "") -> int:
        """Keep a result in the session's own book, and no more of them than are of use; the next commit takes it.

        Of one that cannot be kept it is kept why, and whose it was: the call was made, and paid for, all the same.

        The time it was kept at, in ms.
        """
        now = self._journal.kernel.clock.wall()
        cache: Any = self._journal.book.setdefault("cache", {})
        over = [(hit["at"] + hit["for"], key) for key, hit in cache.items() if key != wanted["name"]]
        over.sort()
        for i, (until, key) in enumerate(over):
            if until > now and len(over) - i < MOST:
                break
            del cache[key]
        lost = {PROBLEM: problem, "effect": effect} if problem else {}
        cache[wanted["name"]] = {"result": result, "at": now, "for": wanted["for"], **lost, **_defaults(wanted)}
        return now

    def keep_outcome(self, record: TrackedDict) -> None:
        """Keep what an effect returned, if its tool declares that; the commit of the outcome takes it."""
        if "cache" in record and "reused" not in record:
            wanted, problem = plain(record["cache"]), record.get(PROBLEM, "")
            record["cache"]["at"] = self.keep(wanted, plain(record["result"]), problem, record["id"])

    def shared(self, digest: str) -> dict[str, Any] | None:
        """What the owner's sessions share under a name."""
        try:
            loaded = load_head(
                self._journal.kernel, look(self._journal.kernel, cache_id(self._journal.settings.owner, digest)), MAIN
            )
        except PerdureError:
            # Not there, or not to be had: the tool is asked instead.
            return None
        if loaded.point is None or loaded.point.envelope.owner != self._journal.settings.owner:
            return None
        kept: dict[str, Any] = plain(loaded.doc[STATE].get("vars", {}))
        return kept if {"result", "at", "for"} <= kept.keys() else None

    def keep_shared(
        self, tool: str, wanted: dict[str, Any], result: Any, effect: str = "", writes: Any = None, problem: str = ""
    ) -> Flow[None]:
        """Keep a result for all sessions of the owner; when somebody else is faster, theirs is as good.

        ``writes`` are what the call has written into its own session's state, which it alone gets back. A ``problem``
        is why there is no result of a call that was done: that ends its claim all the same, and others are told.
        """
        hit = {"result": result, "at": self._journal.kernel.clock.wall(), "for": wanted["for"], "effect": effect}
        if problem:
            hit[PROBLEM] = problem
        if writes:
            hit[WRITES] = writes
        with suppress(PerdureError):
            entry = yield from self._entry(wanted)
            if entry is not None:
                yield from self._hold(entry, tool, wanted, hit)

    def _hold(self, entry: Journal, tool: str, wanted: dict[str, Any], hit: dict[str, Any]) -> Flow[None]:
        """Write an outcome into its entry, which ends the claim; when somebody else is faster, theirs is as good."""
        kept = entry.document.root[STATE]["vars"]
        for name in (CLAIM, PROBLEM, WRITES, DEFAULTS):
            kept.pop(name, None)
        kept.update({**hit, **_defaults(wanted)})
        with suppress(Conflict):
            yield from entry.write(Kind.COMMIT, x={"tool": tool})

    def _entry(self, wanted: dict[str, Any]) -> Flow[Journal | None]:
        """The session that holds what is shared under a name; None when it is another owner's."""
        kernel, owner = self._journal.kernel, self._journal.settings.owner
        settings = Settings(owner, max(1, wanted["for"] // 1000), kernel.schema, "reuse")
        # Nobody else has this journal: its gate is never waited for, whoever drives it.
        entry = Journal(kernel, cache_id(owner, wanted["name"]), MAIN, None, settings, threading.RLock())
        yield from entry.load()
        if not isinstance(entry.document.root[STATE].get("vars"), dict):
            what = (
                f"it holds what a call has returned for all sessions of {owner!r}, and somebody else has written to it"
            )
            raise Corrupted(f"session {entry.id!r}", f"{what}: delete it, and the call is made anew")
        return None if entry.point is not None and entry.point.envelope.owner != owner else entry

    def claim(
        self, tool: str, wanted: dict[str, Any], effect: str, earlier: Collection[str] = ()
    ) -> Flow[dict[str, Any] | None]:
        """Claim a shared call for an effect that is about to be made. None: it is ours.

        A claim is the call's: one that is made once more under another id takes it over from its ``earlier`` effects.
        Otherwise what it has returned lately, or the claim of another effect that has no outcome: it may be paid for.
        """
        for _ in range(TRIES):
            entry = yield from self._entry(wanted)
            if entry is None:
                return None
            kept = entry.document.root[STATE]["vars"]
            if "result" in kept and self.gives(plain(kept), wanted):
                return plain(kept)
            other: Any = kept.get(CLAIM)
            if other is not None and other["effect"] == effect:
                return None
            is_ours = other is not None and other["session"] == self._journal.id and other["effect"] in earlier
            if other is not None and self.fresh(other) and not is_ours:
                there = yield Do(claimed, (self._journal.kernel, other["session"], other["effect"]))
                is_here = other["session"] == self._journal.id
                if there.record is not None and self.fresh(hit := _hit_of(there.record, plain(other), wanted)):
                    # It is known there, and never came here: whoever was to write it could not, or it was lost.
                    yield from self._hold(entry, tool, wanted, hit)
                    return hit
                is_void = there.stands in (Stands.DONE, Stands.NOT_MADE, Stands.LEFT)
                # Whoever has the session is here, and another branch of it begins nothing meanwhile.
                if not is_void and not (
                    is_here and there.stands is Stands.PLANNED and there.line != self._journal.line
                ):
                    return plain(other)
            kept[CLAIM] = {
                "effect": effect, "session": self._journal.id, "at": self._journal.kernel.clock.wall(),
                "for": wanted["for"],
            }  # fmt: skip
            try:
                yield from entry.write(Kind.COMMIT, x={"tool": tool})
            except Conflict:
                continue
            return None
        raise Unavailable(f"so many sessions claim this call of {tool} that none was granted: call again")

    def claim_again(self, tool: str, wanted: dict[str, Any], effect: str, at: int) -> Flow[None]:
        """Have a claim stand that was lost with the store's newest records: since when it was made, for its time."""
        for _ in range(TRIES):
            entry = yield from self._entry(wanted)
            if entry is None:
                return
            kept = entry.document.root[STATE]["vars"]
            if ("result" in kept and self.fresh(kept)) or (CLAIM in kept and kept[CLAIM]["at"] >= at):
                return
            kept[CLAIM] = {"effect": effect, "session": self._journal.id, "at": at, "for": wanted["for"]}
            try:
                yield from entry.write(Kind.COMMIT, x={"tool": tool})
            except Conflict:
                continue
            return
        raise Unavailable(f"so many sessions claim this call of {tool} that none was granted: run the same again")

    def give_up(self, tool: str, wanted: dict[str, Any], effect: str, *, to: str = "") -> Flow[None]:
        """The effect has certainly not happened: whoever asks next may make the call.

        ``to`` is one that it has repeated, and of which nobody knows what it did: the claim is that one's again.
        """
        entry = yield from self._entry(wanted)
        if entry is None or entry.document.root[STATE]["vars"].get(CLAIM, {}).get("effect") != effect:
            return
        if to:
            entry.document.root[STATE]["vars"][CLAIM]["effect"] = to
        else:
            del entry.document.root[STATE]["vars"][CLAIM]
        # Who has written to it meanwhile has seen that the claim's time is over.
        with suppress(Conflict):
            yield from entry.write(Kind.COMMIT, x={"tool": tool})
