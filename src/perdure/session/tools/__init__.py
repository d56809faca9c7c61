"""What a tool is: its declaration, its arguments and results, the context it is given, and what its exceptions mean.

Knows nothing of how a call is recorded: that is ``calls``, which imports this folder. Read ``declaration`` first.

What a tool answers and raises stands right here: records name these classes in full, as
``perdure.session.tools.NotDone``, and so do a program's filters of warnings.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Done(NamedTuple):
    """A reconciler's answer: it happened, and this was its result."""

    result: Any = None


class NotDone(Exception):
    """It certainly did not happen: a reconciler returns it, a tool raises it."""


class ToolError(NotDone):
    """A tool raises it when it cannot do what was asked, and has done nothing: the model is told why."""


class ModelRetry(NotDone):
    """A tool raises it when it was asked wrongly, and has done nothing: the model is told how to ask instead.

    After the second time in a row it is told to leave it.
    """


class Unknown(NamedTuple):
    """Nobody knows whether it happened: a reconciler's answer, or the outcome of an ``if_unsure="report"`` call."""

    effect: str = ""


class UndeclaredTool(UserWarning):
    """A plain function was given to an agent, and what happens when the process dies during a call was not said."""


class Later(NamedTuple):
    """What a tool returns when its result comes later: ``handle`` is what the outside world calls the work.

    It is completed by ``db.post_outcome(session, effect, result)``, or by the tool's ``poll`` function.
    """

    handle: Any = None
