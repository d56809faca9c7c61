"""A request is a pure function of a session's state and book: built for the loop, and again for any old checkpoint."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent.context.window import Plain, sendable, summary_request, system_text
from perdure.agent.models import Request
from perdure.errors import InvalidInput
from perdure.history.hydrate import load, load_at, look
from perdure.model import MAIN
from perdure.state.document import BOOK, STATE, Document, plain
from perdure.system.names import check_session

if TYPE_CHECKING:
    from perdure.database import DatabaseHandle
    from perdure.kernel import Kernel
    from perdure.record.codec import Loaded

AGENT = "agent"
"""Where the loop keeps its notes in a session's book."""
FORM = 1
"""How requests are put together: another way to do it gets another number, and old requests stay as they were."""


def note(book: Any, setup: dict[str, Any], context: dict[str, Any] | None, sent: int) -> None:
    """Write down what the next request is made of; what has not changed costs nothing."""
    note_setup(book, setup)
    if plain(book.get("context")) != context:
        book["context"] = context
    book["sent"] = sent


def note_setup(book: Any, setup: dict[str, Any]) -> None:
    """Write down how the agent is made, as far as that has changed."""
    held = book.get("setup")
    if held is None or plain(held).keys() != setup.keys():
        book["setup"] = setup
        return
    for name, value in setup.items():
        # Part by part: what is asked for before each answer, or who is asked, may change with each.
        if plain(held[name]) != value:
            held[name] = value


def build(state: Any, book: Any) -> Request:
    """The request that the notes of the loop describe, from the messages of the state."""
    setup = plain(book["setup"])
    if setup["form"] != FORM:
        raise InvalidInput(f"this request was put together in a newer way ({setup['form']}): use a newer perdure")
    window = book.get("window") or {}
    start = window.get("from", 0)
    held = state["messages"]
    messages = [sendable(plain(held[i])) for i in window.get("kept", ())]
    messages += map(sendable, held.plain(start, book["sent"]))
    recall = start > 0 and bool(setup["search"])
    text = system_text(setup["instructions"], plain(book.get("context")), plain(state["summary"]), start, recall)
    if text:
        messages.insert(0, {"role": "system", "content": text})
    tools = setup["tools"] + (setup["search"] if recall else []) + (setup["reading"] if book.get("reads") else [])
    return Request(setup["model"], messages, tools, setup["params"])


def rebuild(db: DatabaseHandle, session: str, step: int | str, *, branch: str = MAIN) -> Request:
    """The exact request whose answer a checkpoint holds, as it was sent. Blocks while it reads.

    A step that holds no answer of a model is ``InvalidInput``.
    """
    kernel = db.kernel
    loaded = load_at(kernel, look(kernel, check_session(session)), step, branch)
    request = request_of(loaded, kernel)
    if request is None:
        raise InvalidInput(f"step {step} of session {session!r} holds no answer of a model: there is no request")
    return request


def is_answer(x: dict[str, Any]) -> bool:
    """Whether what a checkpoint says of itself tells of a turn of an agent: the commits of the compactor do not."""
    return "model" in x and "window" not in x


def request_of(loaded: Loaded, kernel: Kernel) -> Request | None:
    """The request that a loaded checkpoint answers, of a turn or of the compactor; None when it answers none."""
    assert loaded.point is not None
    env = loaded.point.envelope
    root = Document(loaded.doc, kernel.resolve, readonly=True).root
    book = root[BOOK].get(AGENT)
    if "model" not in env.x or not book or "setup" not in book:
        return None
    if is_answer(env.x):
        return build(root[STATE], book)
    # The compactor's has the notes in it that it replaced.
    before = load(kernel, env.session, env.line, env.step - 1).doc[STATE]["summary"] if env.step > 1 else ""
    return compactors_request(env.x, plain(book["setup"]), plain(before), Plain(root[STATE]["messages"]))


def compactors_request(x: dict[str, Any], setup: dict[str, Any], before: str, messages: Plain) -> Request:
    """The request for the summary that a checkpoint of the compactor holds."""
    part = (x["window"]["since"], x["window"]["told"], x["window"]["piece"])
    return summary_request(setup["compactor"], x["model"]["name"], before, messages, part)
