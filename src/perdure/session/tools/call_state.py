"""The session's state as one call sees it: ``ctx.state``, whose writes land with the call's outcome or not at all.

A call writes into a draft of its own, so that whatever raises, is killed or is asked again has written nothing. Once it
has its outcome, the draft goes into the very commit that makes the outcome durable; its operations stand in the call's
record, too, for a run that catches up and for branches that get the outcome without the call.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput, Misuse, format_path
from perdure.record.codec import MAX_ROW, encode_commit
from perdure.state.delta import SPLICE
from perdure.state.document import STATE, draft_of, edit, plain
from perdure.system.wording import storable

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from perdure.session.journal import Journal
    from perdure.state.delta import Op
    from perdure.state.document import Document, TrackedDict

    Path = tuple[str | int, ...]

WRITES = "writes"
"""Under this the record of a call has what it wrote into the state, as operations on it."""
UNKEPT = "unkept"
"""Under this it has why what it wrote was not kept."""
OUTCOME, RETURNED = "outcome", "returned"
"""Inputs that settle a call: with its result; and with its result and what it wrote, from a tool that returned late."""
OF_THE_AGENT = ("messages", "summary", "results")
"""Parts of the state that are an agent's own: what the model is sent rests on them."""
MAX_WRITES = MAX_ROW // 2
"""The most bytes that one call may write, values that become blobs apart: its outcome needs room in the commit."""


_MISSING = object()


def _container(op: Op) -> Path:
    """The place that an operation is about; of one in a list the list, as a place in it may be another by now."""
    path: Path = tuple(op[1])
    return path[: next((i for i, part in enumerate(path) if isinstance(part, int)), len(path))]


def _at(state: Any, path: Path) -> Any:
    """What stands at a place."""
    here = state
    for part in path:
        if not isinstance(here, dict) or part not in here:
            return _MISSING
        here = cast("dict[Any, Any]", here)[part]
    return plain(here)


class CallState:
    """A draft of a session's state, made when it is first asked for."""

    def __init__(self, journal: Journal, readonly: str = "") -> None:
        self._journal = journal
        self._readonly = readonly
        self._document: Document | None = None
        self._since = ""
        """The checkpoint on which it was made."""
        self._loads = 0
        self._lock = threading.Lock()
        self._others: list[tuple[Path, str]] = []
        """What was written meanwhile, and by which tool."""
        self._problem = ""
        self._is_over = False

    def open(self) -> TrackedDict:
        """The state: it can be read and changed like a session's own."""
        with self._lock:
            if self._document is None:
                base = self._journal.document
                with base.lock:
                    self._document = draft_of(base.root[STATE], readonly=self._readonly or False)
                    self._loads = self._journal.loads
                    stands = self._journal.point
                    self._since = stands.envelope.id.hex() if stands is not None else ""
                    if not self._readonly and not self._is_over:
                        self._journal.drafts.add(self)
            return self._document.root

    def landed(self, ops: Sequence[Op], tool: str) -> None:
        """A commit is on its way, while the call is under way."""
        self._others += [(tuple(op[1][1:]), tool) for op in ops if op[1][0] == STATE]

    def redo(self, ops: Sequence[Op]) -> None:
        """Write what another line says that the same call has written there."""
        root = self.open()
        for op in ops:
            try:
                if op[0] == SPLICE or any(isinstance(part, int) for part in op[1]):
                    # What stands at a place of a list there may be something else here.
                    raise LookupError
                edit([plain(op)], root)
            except (LookupError, TypeError, AttributeError):
                where: Path = tuple(op[1])
                self._problem = f"{format_path(where)} is not here what it was where the call was made"
                return

    def to_post(self, result: Any) -> tuple[str, Any]:
        """The input that reports what a call has returned when nobody waited any more, with what it wrote: kind, body.

        What was written goes along with the checkpoint that it was written on: whoever takes the input sees there
        whether somebody else has written the same since.
        """
        ops: list[Op] = self._document.collect() if self._document is not None else []
        return (RETURNED, {"result": result, "writes": ops, "since": self._since}) if ops else (OUTCOME, result)

    def write_late(self, ops: Sequence[Op], since: dict[str, Any] | None) -> None:
        """Write what the call wrote while nobody waited; ``since`` is the state that it was written on.

        It is kept where nothing else has been written there since then.
        """
        root = self.open()
        for op in ops:
            where = _container(op)
            if since is None:
                self._problem = f"nobody knows any more whether {format_path(where)} was written meanwhile"
            elif _at(since, where) != _at(root, where):
                self._problem = f"{format_path(where)} was written meanwhile"
            if self._problem:
                return
        try:
            edit([plain(op) for op in ops], root)
        except (LookupError, TypeError, AttributeError):
            self._problem = "what it was written into is gone"

    def refuse(self, why: str) -> None:
        """Keep nothing of what was written, and say why."""
        _ = self.open()
        self._problem = why

    def drop(self) -> None:
        """Have nothing of it kept: the call is over, although its function may run on."""
        with self._journal.document.lock:
            self._is_over = True
            self._journal.drafts.discard(self)

    @contextmanager
    def kept_in(self, record: TrackedDict, *, agent: bool) -> Generator[None]:
        """Put what was written into the session's state and the call's record, together with what is done inside.

        No other commit of the handle comes between. What cannot be kept is not, and the record says why.
        """
        draft, journal = self._document, self._journal
        ops: list[Op] = draft.collect() if draft is not None else []
        problem = (self._problem or self._unfit(draft, ops, agent=agent)) if draft is not None else ""
        with journal.document.lock:
            try:
                if draft is not None and not problem and ops:
                    problem = self._conflict(ops)
                if problem:
                    record[UNKEPT] = problem
                elif ops:
                    # One that is asked again later has written before.
                    record[WRITES] = [*plain(record.get(WRITES, ())), *ops]
                    edit(ops, journal.document.root[STATE])
                self.drop()
                yield
            except BaseException:
                if ops:
                    # Half of it may be there, which no commit must take.
                    journal.stale = Misuse(
                        f"session {journal.id!r} was interrupted while what a call wrote into its state was put down: "
                        "reload() the handle, or open the session again, and call again"
                    )
                raise

    def _unfit(self, draft: Document, ops: list[Op], *, agent: bool) -> str:
        """Why what was written could never be committed; "" when it can."""
        for op in ops:
            if agent and op[1][0] in OF_THE_AGENT:
                return f"{format_path(op[1][:1])} is the agent's own: keep things in state.vars, or under another key"
        whole = [[op[0], [STATE, *op[1]], *op[2:]] for op in ops]
        try:
            body, _ = encode_commit(whole, {}, self._journal.kernel.form)
            if self._journal.settings.validate is not None:
                self._journal.settings.validate(draft.root, whole)
        except InvalidInput as e:
            return storable(str(e))
        size = len(body.data)
        return f"it has {size} bytes, over the limit of {MAX_WRITES}" if size > MAX_WRITES else ""

    def _conflict(self, ops: list[Op]) -> str:
        if self._journal.loads != self._loads:
            return "the session was loaded anew meanwhile"
        now = [(tuple(op[1][1:]), "") for op in self._journal.document.collect() if op[1][0] == STATE]
        for path, tool in [*self._others, *now]:
            for op in ops:
                both = min(len(path), len(op[1]))
                if tuple(op[1][:both]) == path[:both]:
                    return f"{format_path(op[1])} was written meanwhile{f' by {tool}' if tool else ''}"
        return ""


def redone(journal: Journal, writes: Sequence[Op]) -> CallState | None:
    """A draft with what the same call has written elsewhere; None when that was nothing."""
    if not writes:
        return None
    draft = CallState(journal)
    draft.redo(writes)
    return draft
