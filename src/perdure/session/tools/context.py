"""What a tool is told of the call it is in: ``ctx``, for the tool itself and for the functions it declares."""

from __future__ import annotations

import inspect
import re
import typing
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic

from perdure.errors import Misuse
from perdure.session.tools.call_state import CallState
from perdure.session.tools.typed_values import hints_of
from perdure.state.document import plain
from perdure.system.flow import Flow, Invoke
from perdure.system.wording import storable

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeVar

    from perdure.session.journal import Journal
    from perdure.state.document import TrackedDict

    D = TypeVar("D", default=Any)
else:
    D = typing.TypeVar("D")

_READS = "a function that only reads changes nothing: what a tool is to write, it writes itself, without read=True"


class Asking(Exception):
    """A tool cannot go on before somebody has answered; raised by :meth:`Context.ask`, recorded by the journal."""

    def __init__(self, question: str, schema: dict[str, Any] | None) -> None:
        self.question = storable(question)
        self.schema = schema
        super().__init__(question)


class Context(Generic[D]):
    """What a function with a ``ctx`` parameter is given: a tool, what it declares, and an agent's own functions.

    ``ctx: Context[Shop]`` says that it needs ``deps``, and of which type; ``ctx: Context``, or ``ctx`` alone, that it
    does without.
    """

    __slots__ = (
        "_answers", "_asked", "_draft", "_wake", "_write", "attempt", "context", "deps", "effect_id", "fence",
        "last_progress", "owner", "session",
    )  # fmt: skip

    def __init__(
        self,
        effect_id: str,
        fence: int | None,
        session: str,
        attempt: int,
        *,
        owner: str = "",
        deps: Any = None,
        context: dict[str, Any] | None = None,
        draft: CallState | None = None,
        last_progress: Any = None,
        answers: tuple[Any, ...] = (),
        write: Callable[[Any], Any] | None = None,
        wake: Callable[..., Any] | None = None,
    ) -> None:
        self.effect_id = effect_id
        """The same for every attempt: send it as the provider's idempotency key. "" for reads, and outside of calls."""
        self.fence = fence
        """The fencing token of the writer's lease, for tools that can refuse an older one."""
        self.session = session
        """The id of the session."""
        self.owner = owner
        """Who the session belongs to."""
        self.attempt = attempt
        self.deps: D = deps
        """What the program has opened for its tools: ``Agent(deps=...)``, or ``s.deps``. It is never stored."""
        self.context = context
        """The ``context`` of an agent's run; None when it was given none."""
        self.last_progress = last_progress
        """What an earlier attempt, or this one, last said of its progress."""
        self._draft = draft
        self._answers = answers
        self._asked = 0
        self._write = write
        self._wake = wake

    @property
    def state(self) -> TrackedDict:
        """The session's state. What the call writes into it is kept with its outcome, and dropped when it raises."""
        if self._draft is None:
            raise Misuse("this context was made by hand: only the call of a session has its state")
        return self._draft.open()

    def progress(self, data: Any) -> Any:
        """Write down how far the call got, durably; the next attempt finds it in ``last_progress``.

        Blocks in a plain function; in a coroutine function await what it returns.
        """
        self.last_progress = data
        return self._write(data) if self._write is not None else None

    def wake(self, at: Any = None, **options: Any) -> Any:
        """Have the session woken later, as :meth:`perdure.Database.wake` does; once, however often the call is made.

        Blocks in a plain function; in a coroutine function await what it returns.
        """
        if self._wake is None:
            raise Misuse("a tool that only reads has no effect of its own: it cannot have the session woken")
        return self._wake(at, **options)

    def ask(self, question: str, schema: dict[str, Any] | None = None) -> Any:
        """The answer of a person to a question; until there is one, the call is put aside and the process may go.

        Once answered, the tool is run again from its beginning, and each question that was answered returns its
        answer: so ask before anything is done. ``schema`` is a JSON schema that the answer must fit.
        """
        if self._asked < len(self._answers):
            self._asked += 1
            return self._answers[self._asked - 1]
        raise Asking(question, schema)

    def __repr__(self) -> str:
        return f"<Context of {self.effect_id}, attempt {self.attempt}>"


class Contexts:
    """Makes the contexts of the calls of one handle."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.deps: Any = None
        """What the tools get as ``ctx.deps``; None: nothing was given."""
        self.context: dict[str, Any] | None = None
        """What the run was told."""

    def make(self, record: TrackedDict | None = None, draft: CallState | None = None, **more: Any) -> Context[Any]:
        """The context of a call, or of what is asked outside of any; without a ``draft`` the state is only read."""
        journal = self._journal
        effect, attempt = ("", 1) if record is None else (record["id"], record["attempt"])
        return Context(
            effect, journal.fence, journal.id, attempt, owner=journal.settings.owner, deps=self.deps,
            context=plain(self.context), draft=draft or CallState(journal, _READS), **more,
        )  # fmt: skip

    def asked(self, fn: Callable[..., Any], record: TrackedDict, draft: CallState | None = None) -> dict[str, Any]:
        """What a function that a tool declares is given beside its arguments: its context, where it takes one."""
        return {"ctx": self.make(record, draft)} if takes_context(fn) else {}


def asked_outside(fn: Callable[..., Any], contexts: Contexts) -> Flow[Any]:
    """What a function of a context answers that is asked outside of any call."""
    return (yield Invoke(fn, (), {"ctx": contexts.make()}))


def takes_context(fn: Any) -> bool:
    """Whether a function has a parameter of the name ``ctx``."""
    try:
        return callable(fn) and "ctx" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        # Some that are not written in Python do not say.
        return False


def needs_deps(fn: Any) -> bool:
    """Whether a function says that it needs ``ctx.deps``: it declares ``ctx: Context[...]``.

    >>> def plain(ctx: Context) -> None: ...
    >>> def shopping(ctx: Context[dict[str, int]]) -> None: ...
    >>> needs_deps(plain), needs_deps(shopping)
    (False, True)
    """
    if not takes_context(fn):
        return False
    kind = hints_of(fn).get("ctx")
    if kind is None:
        # Its type is imported for type checkers alone.
        said = inspect.signature(fn).parameters["ctx"].annotation
        named = re.search(r"\bContext\[\s*(.+?)\s*\]$", said) if isinstance(said, str) else None
        return named is not None and named[1] not in ("None", "Any", "typing.Any", "object")
    parts = typing.get_args(kind) if typing.get_origin(kind) is Context else ()
    return any(part not in (NoneType, Any, object) for part in parts)
