"""What an exception of a tool means for its call, and what is written down of it.

Only what a tool says on purpose (``NotDone``, ``ToolError``, ``ModelRetry``) means that nothing happened. An answer
that was lost (a time-out, a broken connection) says nothing at all; whatever else a tool raises has ended the call, and
what it had changed by then is not known.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import traceback
from contextlib import contextmanager
from enum import Enum
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import ApprovalRuleFailed, Busy, LeaseLost, OutcomeUnknown, PerdureError, Unavailable
from perdure.session.tools import NotDone
from perdure.system.secrets import scrubbed
from perdure.system.wording import call_words, one_line, storable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

    from perdure.session.tools.declaration import Tool

MAX_MESSAGE = 1000
"""Characters of an exception's own words that are kept."""
MAX_TRACEBACK = 4000
"""Characters of its traceback, the end of it."""
FRAMES = 12
"""Innermost frames of a traceback that are kept."""
LOOKED_AT = 200
"""Innermost frames that are looked at."""
DEEPEST = 32
"""Exceptions that are looked at along causes, contexts and groups."""

OURS = (LeaseLost, OutcomeUnknown, Unavailable, Busy)
"""What says something of our own store, and nothing of the call."""


class LetThrough(BaseException):
    """What is for whoever runs the program, and what nothing that deals with the errors of tools may hide."""


ENDING = (KeyboardInterrupt, SystemExit, GeneratorExit, LetThrough)
"""What says that we are to end, and nothing of the call."""


class Meaning(Enum):
    """What became of a call that ended with an exception."""

    NOT_DONE = "not_done"
    """Nothing happened: the tool says so."""
    LOST = "lost"
    """Nobody knows whether it happened: the answer did not come."""
    UNREACHED = "unreached"
    """The other side could not be reached."""
    OURS = "ours"
    """Our own store is the matter: the call stays as it is."""
    RAISED = "raised"
    """It ended, and what it had changed by then is not known."""


_LOST_NAMES = frozenset({
    "httpx.ReadTimeout", "httpx.WriteTimeout", "httpx.ReadError", "httpx.WriteError", "httpx.CloseError",
    "httpx.RemoteProtocolError", "requests.ReadTimeout", "requests.ChunkedEncodingError", "urllib3.ReadTimeoutError",
    "urllib3.ProtocolError", "urllib3.IncompleteRead", "aiohttp.ServerDisconnectedError", "aiohttp.ServerTimeoutError",
    "aiohttp.ClientPayloadError", "botocore.ReadTimeoutError", "botocore.ConnectionClosedError",
    "subprocess.TimeoutExpired", "concurrent.BrokenExecutor", "concurrent.CancelledError",
    "asyncio.IncompleteReadError", "http.IncompleteRead", "ssl.SSLEOFError", "ssl.SSLZeroReturnError",
})  # fmt: skip
_UNREACHED_NAMES = frozenset({
    "httpx.ConnectError", "httpx.ConnectTimeout", "httpx.PoolTimeout", "requests.ConnectTimeout",
    "urllib3.NewConnectionError", "urllib3.ConnectTimeoutError", "urllib3.NameResolutionError",
    "aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError", "botocore.EndpointConnectionError",
    "botocore.ConnectTimeoutError",
})  # fmt: skip
"""By the package and the name of the class: nobody need have any of them installed."""
_CAME_FROM: tuple[Any, ...] = (BaseException.__cause__, BaseException.__context__)
_TRACEBACK: Any = BaseException.__traceback__
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_THREADS = (os.path.join(os.path.dirname(threading.__file__), "concurrent", "futures"), threading.__file__)
_SAME_PACKAGE = {"httpcore": "httpx", "httpx2": "httpx", "httpcore2": "httpx"}
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
_LOST_GRPC = frozenset({"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


def meaning(error: BaseException, lost: tuple[type[BaseException], ...] = ()) -> Meaning:
    """What an exception says of the call that it ended; ``lost`` are classes the tool names for lost answers.

    The outermost one that says something counts, along causes, contexts and groups.

    >>> meaning(KeyError("id")), meaning(TimeoutError()), meaning(ConnectionRefusedError())
    (<Meaning.RAISED: 'raised'>, <Meaning.LOST: 'lost'>, <Meaning.UNREACHED: 'unreached'>)
    """
    if isinstance(error, NotDone):
        return Meaning.NOT_DONE
    chain = list(_chain(error))
    if any(isinstance(one, OURS) for one in chain):
        return Meaning.OURS
    for one in chain:
        if (said := _said(one, lost)) is not None:
            return said
    return Meaning.RAISED


def is_of_the_call(error: BaseException) -> bool:
    """Whether an exception is a function's own, of whatever kind, and no sign that we are to end.

    >>> is_of_the_call(KeyError()), is_of_the_call(StopIteration()), is_of_the_call(KeyboardInterrupt())
    (True, True, False)
    """
    if isinstance(error, Exception):
        return True
    if is_cancellation(error):
        return not is_own_cancellation(error)
    return not any(isinstance(one, ENDING) for one in _chain(error))


def _said(error: BaseException, lost: tuple[type[BaseException], ...]) -> Meaning | None:
    """What one exception says by itself; None when it says nothing."""
    if isinstance(error, lost):
        return Meaning.LOST
    names = {f"{_package(kind)}.{kind.__name__}" for kind in type(error).__mro__}
    if names & _UNREACHED_NAMES:
        return Meaning.UNREACHED
    if names & _LOST_NAMES or is_cancellation(error):
        return Meaning.LOST
    if (status := _http_status(error)) is not None:
        # The other side has answered: what it said is the tool's business, unless it did not get to an answer itself.
        return Meaning.LOST if status == 408 or 500 <= status < 600 else Meaning.RAISED
    if (code := _grpc_code(error)) is not None:
        return Meaning.LOST if code in _LOST_GRPC else Meaning.RAISED
    if isinstance(error, ConnectionRefusedError | socket.gaierror) or (
        isinstance(error, OSError) and error.errno in _NO_WAY
    ):
        return Meaning.UNREACHED
    if isinstance(error, TimeoutError | ConnectionError):
        return Meaning.LOST
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those it came from, outermost first."""
    waiting: list[BaseException] = [error]
    seen = set[int]()
    while waiting and len(seen) < DEEPEST:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", one).exceptions)
        # By Python's own way to them: a class may have one that raises.
        known = (cast("BaseException | None", own.__get__(one)) for own in _CAME_FROM)
        waiting.extend(e for e in known if e is not None)


def _package(kind: type) -> str:
    package = str(kind.__module__).partition(".")[0]
    return _SAME_PACKAGE.get(package, package)


def is_cancellation(error: BaseException) -> bool:
    """Whether a task was cancelled, ours or one inside."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _asked(thing: Any, name: str) -> Any:
    """What somebody else's class says of itself; None where asking raises, whatever that is."""
    try:
        return getattr(thing, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _http_status(error: BaseException) -> int | None:
    """The status of an answer that an HTTP client has made an exception of."""
    response: Any = _asked(error, "response")
    if isinstance(response, dict):
        # As botocore keeps it.
        told: Any = cast("dict[str, Any]", response).get("ResponseMetadata")
        found: Any = cast("dict[str, Any]", told).get("HTTPStatusCode") if isinstance(told, dict) else None
        return found if isinstance(found, int) else None
    for place, name in ((error, "status_code"), (response, "status_code"), (error, "status"), (response, "status")):
        found = _asked(place, name)
        if isinstance(found, int) and 100 <= found < 600:
            return found
    return None


def _grpc_code(error: BaseException) -> str | None:
    """The status of a gRPC call that failed."""
    if "grpc" not in str(type(error).__module__):
        return None
    code = _asked(error, "code")
    try:
        name = getattr(code(), "name", None) if callable(code) else None
    except Exception:
        return None
    return name if isinstance(name, str) else None


def is_own_cancellation(error: BaseException) -> bool:
    """Whether it is our own task that is being cancelled, and not something inside the tool that was."""
    if not is_cancellation(error):
        return False
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


@contextmanager
def rule(option: str, tool: Tool, args: dict[str, Any]) -> Generator[None]:
    """Ask a function that a tool has for approvals; where it raises, the call can neither be asked for nor made."""
    try:
        yield
    except PerdureError:
        raise
    except BaseException as e:
        if not is_of_the_call(e):
            raise
        raise ApprovalRuleFailed(
            f"{call_words(tool.name, args, 90, 40)} was not called: what its tool has as {option} raised "
            f"{type(e).__name__}: {one_line(words_of(e), 200)}. Mend that, then run the session again"
        ) from e


def described(error: BaseException, hangs_at: Sequence[traceback.FrameSummary] = ()) -> dict[str, str]:
    """What is kept of an exception: its class, its words and where it came from, bounded and without secrets.

    Of a time-out of ours that is where the tool hangs, which is still at work in its thread.
    """
    frames = list(hangs_at) or _newest_frames(_TRACEBACK.__get__(error))
    # Above the tool's own frames stand ours, which called it, perhaps in a thread.
    own = [frame for frame in frames if not frame.filename.startswith(_HERE)]
    own = list(dropwhile(lambda frame: frame.filename.startswith(_THREADS), own)) or frames
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}\n    {frame.line or ''}".rstrip() for frame in own]
    return {
        "class": class_name(error),
        "message": storable(scrubbed(_words(error)))[:MAX_MESSAGE],
        "traceback": storable(scrubbed("\n".join(lines[-FRAMES:])))[-MAX_TRACEBACK:],
    }


def _newest_frames(at: TracebackType | None) -> list[traceback.FrameSummary]:
    """Where an exception was raised last: one that is raised again has the frames of all times, the newest first."""
    found: list[TracebackType] = []
    ours: set[FrameType] = set()
    # A frame of ours that comes once more belongs to the time before, unless it has raised it once more itself.
    while at is not None and (at.tb_frame not in ours or at.tb_frame is found[-1].tb_frame):
        found.append(at)
        if at.tb_frame.f_code.co_filename.startswith(_HERE):
            ours.add(at.tb_frame)
        at = at.tb_next
    pairs = ((one.tb_frame, one.tb_lineno) for one in found[-LOOKED_AT:])
    return list(traceback.StackSummary.extract(pairs))


def in_short(told: Mapping[str, str]) -> str:
    """What was kept of an exception in one line.

    >>> in_short({"class": "KeyError", "message": "'id'"}), in_short({"class": "TimeoutError", "message": ""})
    ("KeyError: 'id'", 'TimeoutError')
    """
    return f"{told['class']}: {told['message']}" if told["message"] else told["class"]


def in_full(told: dict[str, str]) -> str:
    """The same, with where it came from."""
    return f"{in_short(told)}\n{told['traceback']}"


def class_name(error: BaseException) -> str:
    """The name of its class, with the module where it is not one of Python's own."""
    kind = type(error)
    return storable(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def words_of(error: BaseException) -> str:
    """An exception's own words, as they can be kept."""
    return storable(_words(error))


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # whatever its class does: it is looked at, and not run
        return f"(its text cannot be told: {type(e).__name__})"
