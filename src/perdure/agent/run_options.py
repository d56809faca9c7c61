"""The options of a run, and of an agent that is made: what cannot be used is refused before anything is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from perdure.agent.limits import check_limits
from perdure.database import EFFECTS
from perdure.errors import InvalidInput, LimitExceeded, NotJson
from perdure.model import MAIN
from perdure.session.handle import check_objective
from perdure.session.tools.declaration import must_be_awaited
from perdure.state.values import Wire, plain_tuples
from perdure.system.names import check_branch, check_name, check_own_session, check_ttl

PARENT = ("session", "branch", "step", "effect")


def check_run(given: Mapping[str, Any]) -> None:
    """Refuse options of :meth:`perdure.Agent.run` that no run can be begun with.

    >>> check_run({"wait": True, "context": {"day": "Monday"}})
    >>> check_run({"wait": "a while"})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: wait is how many seconds to wait, or True for as long as it takes, not 'a while'
    """
    for name, value in given.items():
        if (check := _CHECKS.get(name)) is not None:
            check(value)
    check_limits(**{name: value for name, value in given.items() if name in _LIMITS})


def check_json(option: str, value: Any) -> None:
    """Refuse a value that is to be recorded and sent to a model, and that JSON has not.

    >>> check_json("context", {"seen": {1, 2}})
    Traceback (most recent call last):
    perdure.errors.NotJson: context.seen is a set, which is not a JSON type: convert it, such as to a string, a number \
or a list
    """
    how = "convert it, such as to a string, a number or a list"
    try:
        Wire(lambda form, data: "").value(plain_tuples(value), ())
        json.dumps(value, allow_nan=False)
    except NotJson as e:
        raise NotJson(e.path, e.what, how, where=".".join((option, *map(str, e.path)))) from None
    except LimitExceeded as e:
        raise LimitExceeded(f"{option}= cannot be kept: {e}") from None
    except (TypeError, ValueError) as e:
        raise InvalidInput(f"{option}= is not JSON: {e}: {how}") from None


def check_function(option: str, fn: Any, what: str) -> None:
    """Refuse what is no plain function where one is called without being awaited."""
    if not callable(fn) or must_be_awaited(fn):
        of = "an asynchronous function" if callable(fn) else f"{fn!r:.60}"
        raise InvalidInput(f"{option} is {what}, not {of}")


def _branch(value: object) -> None:
    if value != MAIN:
        check_branch(value)


def _key(value: object) -> None:
    if value is not None:
        check_name(value, "message key")


def _context(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise InvalidInput(f'context is a dict of JSON values, such as {{"day": "Monday"}}, not {value!r:.60}')
    check_json("context", value)


def _objective(value: object) -> None:
    if value is not None:
        check_objective(value)


def _effects(value: object) -> None:
    if value not in EFFECTS:
        raise InvalidInput(f"effects is one of {', '.join(EFFECTS)}, not {value!r:.40}")


def _ttl(value: object) -> None:
    if value != "default":
        check_ttl(value)


def _on_event(value: object) -> None:
    if value is not None:
        check_function("on_event", value, "a plain function that is given each event")


def _agents(value: Any) -> None:
    from perdure.agent.agent import Agent

    fits = isinstance(value, Sequence) and all(isinstance(one, Agent) for one in cast("Sequence[object]", value))
    if not fits or isinstance(value, str):
        raise InvalidInput(f"agents is a list of agents, such as agents=[billing], not {value!r:.60}")


def _parent(value: Any) -> None:
    if value is not None and not (isinstance(value, dict) and all(name in value for name in PARENT)):
        raise InvalidInput(f"parent is set by agent.as_tool(), and names {', '.join(PARENT)}, not {value!r:.60}")


def _stop(value: Any) -> None:
    if value is not None and not callable(getattr(value, "is_set", None)):
        raise InvalidInput(f"stop is an asyncio.Event() that you set to have the run put down, not {value!r:.60}")


def _wait(value: object) -> None:
    if value is True or value is False:
        return
    if not isinstance(value, int | float) or math.isnan(value) or value < 0:
        raise InvalidInput(f"wait is how many seconds to wait, or True for as long as it takes, not {value!r:.40}")


def _flag(name: str) -> Callable[[object], None]:
    def check(value: object) -> None:
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is True or False, not {value!r:.40}")

    return check


_LIMITS = ("max_turns", "max_tokens", "max_cost", "deadline")
_CHECKS: dict[str, Callable[[Any], object]] = {
    "session": check_own_session,
    "key": _key,
    "owner": lambda value: check_name(value, "owner", empty=True),
    "context": _context,
    "objective": _objective,
    "effects": _effects,
    "branch": _branch,
    "ttl": _ttl,
    "on_event": _on_event,
    "live": _flag("live"),
    "agents": _agents,
    "parent": _parent,
    "stop": _stop,
    "wait": _wait,
    "claimed": _flag("claimed"),
    "reopen": _flag("reopen"),
    "by": lambda value: check_name(value, "by", empty=True),
}
