"""What a running tool is given: the id of its effect, its fence, and ways to say how far it got or to ask a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable


class Asking(Exception):
    """A tool cannot go on before somebody has answered; raised by :meth:`Context.ask`, recorded by the journal."""

    def __init__(self, question: str, schema: dict[str, Any] | None) -> None:
        self.question = question
        self.schema = schema
        super().__init__(question)


class Context:
    """What a tool with a ``ctx`` parameter is given."""

    __slots__ = ("_answers", "_asked", "_wake", "_write", "attempt", "effect_id", "fence", "last_progress", "session")

    def __init__(
        self,
        effect_id: str,
        fence: int | None,
        session: str,
        attempt: int,
        *,
        last_progress: Any = None,
        answers: tuple[Any, ...] = (),
        write: Callable[[Any], Any] | None = None,
        wake: Callable[..., Any] | None = None,
    ) -> None:
        self.effect_id = effect_id
        """The same for every attempt: send it as the provider's idempotency key."""
        self.fence = fence
        """The fencing token of the writer's lease, for tools that can refuse an older one."""
        self.session = session
        self.attempt = attempt
        self.last_progress = last_progress
        """What an earlier attempt, or this one, last said of its progress."""
        self._answers = answers
        self._asked = 0
        self._write = write
        self._wake = wake

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
