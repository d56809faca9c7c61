"""Sessions as they were stored, for tools of people: they have none of the program's migrations or state types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput
from perdure.state.document import STATE, genesis, plain
from perdure.state.values import Wire

if TYPE_CHECKING:
    from perdure.aio import AsyncDatabase, Opening
    from perdure.history.checkpoint import Reading


PARTS: dict[str, type] = {name: type(value) for name, value in genesis()[STATE].items()}
"""What the library itself keeps in a state, and of which type it is."""
_WORDS: dict[type, str] = {
    list: "a list", dict: "an object", str: "text", int: "a whole number", float: "a number", bool: "true or false",
    bytes: "bytes",
}  # fmt: skip


async def open_as_stored(db: AsyncDatabase, session: str, branch: str, **options: Any) -> Opening:
    """Open a session for writing in the schema that it has, and leave it in that schema."""
    reading = await db.read(session, branch=branch, migrate=False)
    return db.in_schema(reading.checkpoint.schema).session(session, branch=branch, create=False, **options)


def check_state(state: dict[str, Any], *, agent: bool = True) -> None:
    """Whether a state that somebody has edited can be committed, and its agent can go on with it; or ``InvalidInput``.

    Where no ``agent`` has worked, messages may be whatever the program keeps there.

    >>> check_state({"messages": [{"role": "user", "content": "x"}], "mine": 7})
    >>> check_state({"messages": 7})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: state.messages must be a list, not a whole number
    """
    for name, kind in PARTS.items():
        value: object = state.get(name, kind())
        if not isinstance(value, kind):
            raise InvalidInput(f"state.{name} must be {_WORDS[kind]}, not {_WORDS.get(type(value), 'null')}")
    for number, message in enumerate(state.get("messages", ())):
        if agent and not isinstance(message, dict):
            raise InvalidInput(f"state.messages[{number}] must be an object with a role and a content")
    # What cannot be stored is refused here rather than by the commit, when there is a branch already.
    Wire(lambda form, data: "").value(state, ())


def book_of(reading: Reading) -> dict[str, Any]:
    """The kernel's book at a checkpoint, as plain values. Reads blobs, so it blocks."""
    return plain(reading.book)
