"""Every error Perdure raises, under one root. Nothing else lives here.

::

    PerdureError
    ├── InvalidInput            what you passed cannot be used; nothing was written
    │   ├── NotJson             a value in the state is not JSON; names its path
    │   ├── LimitExceeded       a size or depth limit; names the limit and how to raise it
    │   ├── InvalidState        the declared state type refused the state
    │   └── UnknownStore        the URL names no store we know
    ├── NotFound                no such session, branch, tag or step
    │   └── Gone                it existed; says why it no longer does
    ├── Conflict                the head has moved since it was read, or the branch is there; carries the head
    │   └── MergeConflict       both sides changed the same paths; lists them
    ├── LeaseError
    │   ├── Busy                another writer holds the session; says who and until when
    │   └── LeaseLost           our lease ended; nothing of ours was written after that
    ├── CallError
    │   ├── Diverged            a resumed run made another call than the recorded one
    │   │   └── RequestDiffers  a replayed run asked the model something else than the recorded one
    │   ├── InDoubt             an effect was started and its outcome is unknown
    │   ├── EffectFailed        the tool said that it failed; recorded as such
    │   ├── EffectRaised        the tool raised; what it had changed by then is not known
    │   ├── StateNotKept        the call was done; what it wrote to ctx.state was refused
    │   ├── DoneElsewhere       the same effect was already done on another branch
    │   ├── ApprovalNeeded      the call waits for a decision
    │   ├── ApprovalRuleFailed  what a tool has as approve, facts or recheck raised; nothing was called
    │   └── ResultPending       the call was made and its result comes later
    ├── ApprovalError           a decision that cannot be taken: unknown, used, expired
    ├── MessageTaken            a message that was answered or withdrawn already: it can be neither any more
    ├── Incompatible            no migration path between two schema versions
    ├── StoreError
    │   ├── Corrupted           stored bytes are not what was written; names where
    │   ├── TailLost            checkpoints that were acknowledged are no longer there
    │   ├── BehindWitness       the store lacks what its witness saw; it can be read, not written
    │   ├── OutcomeUnknown      a commit may or may not have landed; carries its id
    │   ├── Unavailable         the store cannot be reached or written at the moment
    │   │   └── StoreFull       no space left; earlier checkpoints are intact
    │   ├── Poisoned            a sync failed, or a file went; this handle may not be used again
    │   ├── KeyMismatch         the store was written with another key, or with none
    │   ├── UnsupportedFormat   written by a newer Perdure
    │   └── CursorExpired       the changes after this cursor were trimmed; scan again
    ├── ModelError              a language model gave no answer that can be used
    │   ├── ModelUnavailable    it cannot be reached, or is too busy; tried several times
    │   ├── ContextTooLong      the request does not fit into its window
    │   ├── AccessRefused       the key, the model's name or the account must be changed first
    │   └── RequestRefused      what it was sent is refused: the same again will be, too
    └── Misuse                  the API was called in a way that can never work
        ├── ReadOnly            an edit of a state that was opened for reading
        ├── HandleClosed        the handle was closed
        ├── SessionClosed       the session has ended: it can be read, not written, until it is opened again
        ├── ForkedProcess       the handle was opened before a fork of the process
        └── MissingExtra        an optional dependency is not installed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


suggested: Callable[[str], str] = "perdure {}".format
"""How a command is typed; :mod:`perdure.system.commands` knows the database that it has to name."""
say_again: Callable[[str], str] = "say it again with key={!r} to get its answer".format
"""How a message that is kept is said again, by its key; the same module knows who reads it."""
when_busy: Callable[[str], str] = (
    "wait until its lease ends, or post() to its inbox, or read() it without a lease".format
)
"""What to do while somebody else has a session; likewise."""
when_own: Callable[[str], str] = (
    "another handle of this very process has it: close that one first (leave its `with` block), or wait for the task "
    "or thread that works with it, or post() to its inbox, or read() it without a lease"
).format
"""The same where it is this process that has it."""


def an(noun: str) -> str:
    """A noun with its article.

    >>> an("object"), an("set"), an("owner")
    ('an object', 'a set', 'an owner')
    """
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


class PerdureError(Exception):
    """Root of all errors. ``str()`` says what happened, where, and what to do next.

    ``kept`` is whether a message that was given to :meth:`perdure.Agent.run` is durable all the same, ``message_key``
    its key: said again with that key, it is not said twice.
    """

    message_key: str = ""
    kept: bool = False

    def __str__(self) -> str:
        said = super().__str__()
        if not self.kept:
            return said
        return f"{said}. The message is kept: {say_again(self.message_key)}"


class InvalidInput(PerdureError):
    """What was passed cannot be used; nothing was written."""


class NotJson(InvalidInput):
    """A value in the state is not one of JSON's types.

    >>> str(NotJson(("vars", "when"), "datetime"))
    'state.vars.when is a datetime, which is not a JSON type: convert it (a string, a number) before the commit'
    """

    def __init__(self, path: Sequence[str | int], what: str, hint: str = "", *, where: str = "") -> None:
        self.path = tuple(path)
        self.what = what
        advice = hint or "convert it (a string, a number) before the commit"
        super().__init__(f"{where or format_path(self.path)} is {an(what)}, which is not a JSON type: {advice}")


class LimitExceeded(InvalidInput):
    """A documented limit was reached."""


class InvalidState(InvalidInput):
    """The state does not fit the declared state type."""


class UnknownStore(InvalidInput):
    """The URL names no store."""


class NotFound(PerdureError):
    """No such session, branch, tag or step."""


class Gone(NotFound):
    """It existed and was removed; ``reason`` says why (expired, deleted, retention)."""

    def __init__(self, message: str, reason: str = "") -> None:
        self.reason = reason
        super().__init__(message)


class Conflict(PerdureError):
    """The head has moved since it was read, or a branch of this name is there already. ``head`` is where it stands now.

    Another writer was first: another process, or another handle of this one. Nothing was written.
    ``session.reload()`` and do it again on the new head, or let :meth:`perdure.Database.update` replay the input.
    """

    def __init__(self, message: str, head: Any = None) -> None:
        self.head = head
        super().__init__(message)


class MergeConflict(Conflict):
    """Both sides changed the same paths since they parted; ``paths`` lists them."""

    def __init__(self, message: str, paths: Sequence[Any], head: Any = None) -> None:
        self.paths = tuple(paths)
        super().__init__(message, head)


class LeaseError(PerdureError):
    """Something about the right to write a session."""


class Busy(LeaseError):
    """Another writer holds the session: ``holder`` says who, ``until`` for how long (store ms).

    ``own`` is whether that is a handle of this very process.
    """

    def __init__(self, session: str, holder: str, until: int, *, own: bool = False) -> None:
        self.session = session
        self.holder = holder
        self.until = until
        self.own = own
        advice = when_own(session) if own else when_busy(session)
        super().__init__(f"session {session!r} is being written by {holder}: {advice}")


class LeaseLost(LeaseError):
    """The lease ended while we held the handle; nothing was written after that."""


class CallError(PerdureError):
    """Something about a tool call; ``effect`` is its id, where it has one."""

    def __init__(self, message: str, effect: str = "") -> None:
        self.effect = effect
        super().__init__(message)


class Diverged(CallError):
    """A resumed run did not repeat the recorded call at this place; nothing was executed."""


class RequestDiffers(Diverged):
    """A replayed run sent the model another request than the recorded one, or one more.

    ``step`` is the recorded checkpoint (the last one when the recording has ended), ``recorded`` and ``found`` are the
    digests of both requests; ``recorded`` is empty when there is no recorded request at this place.
    """

    def __init__(self, session: str, step: int, recorded: str, found: str) -> None:
        self.session = session
        self.step = step
        self.recorded = recorded
        self.found = found
        what = (
            f"the request of step {step} differs from the recorded one ({found[:12]}, recorded {recorded[:12]})"
            if recorded
            else f"the recording ends with step {step}, and one more request was made"
        )
        super().__init__(f"session {session!r}: {what}: the agent, its tools, its settings or its context changed")


class InDoubt(CallError):
    """An effect was started and nobody knows whether it happened.

    ``effect`` is its id. Settle it with ``session.resolve(effect, ...)``.
    """


class EffectFailed(CallError):
    """The tool reported a definite failure (nothing happened); recorded under ``effect``."""


class EffectRaised(CallError):
    """The tool ended with an exception of its own: it is over, and what it had changed by then is not known.

    ``error`` has ``class``, ``message`` and ``traceback`` as they were recorded; the exception itself is the cause, in
    the process where it was raised.
    """

    def __init__(self, message: str, effect: str = "", error: dict[str, str] | None = None) -> None:
        self.error = error or {}
        super().__init__(message, effect)


class StateNotKept(CallError):
    """A call was done, and what it wrote to ``ctx.state`` was not kept: another call wrote the same place meanwhile.

    Or it can never be kept: it is no JSON, does not fit the declared state type, or is too large. ``result`` is what
    the call returned, as it is recorded under ``effect``.
    """

    def __init__(self, message: str, effect: str = "", result: Any = None) -> None:
        self.result = result
        super().__init__(message, effect)


class DoneElsewhere(CallError):
    """The same effect was already done on another line of this session."""


class ApprovalNeeded(CallError):
    """The call is recorded and waits for a decision; ``approval`` is the request."""

    def __init__(self, message: str, approval: Any) -> None:
        self.approval = approval
        super().__init__(message)


class ApprovalRuleFailed(CallError):
    """What a tool has as ``approve``, ``facts`` or ``recheck`` raised: nothing was called, and a decision waits."""


class ResultPending(CallError):
    """The call was made and its result comes later, under ``effect``: post it, or let the tool's ``poll`` find it."""


class ApprovalError(PerdureError):
    """A decision that cannot be taken: unknown, already used, expired, or for something else."""


class Incompatible(PerdureError):
    """No migration path leads from the stored schema version to the wanted one."""

    def __init__(self, message: str, found: str = "", wanted: str = "") -> None:
        self.found = found
        self.wanted = wanted
        super().__init__(message)


class StoreError(PerdureError):
    """Something about the store."""


class Corrupted(StoreError):
    """Stored bytes are not what was written; ``where`` names the place."""

    def __init__(self, where: str, what: str, advice: str = "") -> None:
        self.where = where
        self.what = what
        advice = advice or f"restore a backup, or see what is left: {suggested('verify --all')}"
        super().__init__(f"{where}: {what}. Nothing was changed: {advice}")


class TailLost(StoreError):
    """The store no longer has what it had acknowledged: it was restored, or a replica that lagged was promoted.

    ``step`` is the last one that was acknowledged to this handle, ``left`` the newest that is still there.
    """

    def __init__(self, session: str, step: int, left: int | None) -> None:
        self.session = session
        self.step = step
        self.left = left
        now = "has no checkpoint of it at all" if left is None else f"has it up to step {left} by now"
        super().__init__(
            f"session {session!r}: step {step} was acknowledged, and the store {now}: it was restored, or failed over "
            "to a replica that lagged behind. reload() and go on from what is left; effects of the lost steps happened"
        )


class BehindWitness(StoreError):
    """The store lacks checkpoints that its witness saw: it was put back to an older state. It is read, not written.

    ``findings`` say what is missing. :meth:`perdure.Database.accept_loss` accepts it.
    """

    def __init__(self, message: str, findings: Sequence[Any] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(message)


class OutcomeUnknown(StoreError):
    """The store did not say whether commit ``id`` landed. Retry with the same handle, or look it up."""

    def __init__(self, message: str, id: bytes = b"") -> None:
        self.id = id
        super().__init__(message)


class Unavailable(StoreError):
    """The store cannot be reached or written at the moment; nothing was written."""


class StoreFull(Unavailable):
    """No space left; nothing was written and earlier checkpoints are intact."""


class Poisoned(StoreError):
    """A sync failed, or somebody removed a file of the store: close this handle and open a new one, or restart."""


class KeyMismatch(StoreError):
    """The records were written with another key than the one given, or with none."""


class UnsupportedFormat(StoreError):
    """The record was written by a newer Perdure: upgrade this process."""


class CursorExpired(StoreError):
    """The changes after this cursor were trimmed or the store was restored: scan again."""


class MessageTaken(PerdureError):
    """A message that can be neither withdrawn nor edited any more: it was answered, or withdrawn before."""


class ModelError(PerdureError):
    """A language model gave no answer that can be used. The session is as it was; run again to go on."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, or is too busy; it was tried several times."""


class ContextTooLong(ModelError):
    """The request does not fit into the model's window."""


class AccessRefused(ModelError):
    """The provider does not let us in: the key, the model's name, the address or the account must be changed first."""


class RequestRefused(ModelError):
    """The provider refuses what it was sent, such as malformed or forbidden contents: the same again will be, too.

    Where a message that was just said is the reason, withdraw it, or have it say something else: ``db.inbox`` lists
    those that are not answered, ``db.withdraw`` and ``db.edit`` take them by their keys.
    """


class Misuse(PerdureError):
    """The API was called in a way that can never work."""


class ReadOnly(Misuse):
    """An edit of a state that was opened for reading."""


class HandleClosed(Misuse):
    """The handle was closed."""


class SessionClosed(Misuse):
    """The session has ended: it can be read, and written once it is opened with ``reopen=True``."""


class ForkedProcess(Misuse):
    """The handle was opened before this process was forked: open a new one in the child."""


class MissingExtra(Misuse, ImportError):
    """An optional dependency is missing, or something that it needs itself."""

    def __init__(self, module: str, extra: str, error: ImportError) -> None:
        lacks = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if lacks and module.replace("-", "_").startswith(lacks):
            what = f"{module} is not installed"
        else:
            what = f"{module} cannot be imported, for {f'{lacks} is not installed' if lacks else error}"
        super().__init__(f'{what}: pip install "perdure[{extra}]"')


def format_path(path: Sequence[str | int]) -> str:
    """Write a path the way a person reads it.

    >>> format_path(("messages", 3, "content"))
    'state.messages[3].content'
    """
    out = "state"
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier():
            out += f".{part}"
        else:
            out += f"[{part[:80]!a}]"
    return out
