"""Sentences falsified on purpose, one at a time: the campaign must notice every one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from perdure.fleet.why import decision, facts, lists, reading, to_do
from perdure.fleet.why.answer import Why
from perdure.session.actions import Action, Do
from tests.campaigns.statements.judging import judge
from tests.campaigns.statements.search import FAMILIES, lead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Mutation(NamedTuple):
    """One falsification: which part decides otherwise, and where that must show."""

    says: str
    part: str
    instead: Callable[..., Any]
    path: tuple[str, ...]
    family: str = "agent"


def _wrong_request(f: Any, name: Do, argument: str = "") -> tuple[Action, ...]:
    return (Action(name, f.row.id, f"{argument}x" if argument else "", f.head.branch),)


MUTATIONS = (
    Mutation("a worker comes for it, where none does", "goes_on_by_itself", lambda f: True, ("create", "say hello")),
    Mutation("it has answered all, where a message waits", "to_take_up", lambda *a, **k: "", ("create", "say hello")),
    Mutation(
        "it waits for a worker, where it is paused", "obstacle_of", lambda *a: None,
        ("submit", "worker starts", "say hello", "pause"),
    ),
    Mutation(
        "it waits for a worker, where its agent is held", "obstacle_of", lambda *a: None,
        ("submit", "worker starts", "say hello", "hold"),
    ),
    Mutation(
        "its program takes it up, where somebody has to agree", "_left_open", lambda f: None,
        ("call that needs agreement", "commit as failed"), "program",
    ),
    Mutation(
        "its result comes later, where it has come", "has_outcome", lambda *a: False, ("say render", "run", "outcome")
    ),
    Mutation("somebody is on it, where nobody is", "is_run", lambda f: True, ("create", "say hello")),
    Mutation(
        "somebody is on it, where it is only open", "is_run", lambda f: True, ("create", "say hello", "session opened")
    ),
    Mutation(
        "it waits for a worker, where it kills them", "failures_here", lambda *a: 0,
        ("submit", "say hello", "worker starts", *["worker crashes"] * 4),
    ),
    Mutation(
        "retry it, where it was", "is_taken_up", lambda w: False, ("say fail", "run", "worker starts", "retry")
    ),
    Mutation("approve another request", "action_on", _wrong_request, ("say refund", "run")),
    Mutation("withdraw another message", "action_on", _wrong_request, ("say reject", "run")),
    Mutation("retry what was refused", "_with_refused", lambda f, found: found, ("say reject", "run")),
    Mutation(
        "give it to an agent that nobody has", "as_meant", lambda f: (Action(Do.SUBMIT, f.row.id, "desc"),),
        ("worker starts", "submit to a slip", "say hello"),
    ),
    Mutation(
        "retry it, where no worker is", "ways_on", lambda f: (Action(Do.RETRY, f.row.id),), ("create", "say hello")
    ),
    Mutation("it is woken, where no worker is", "served_by", lambda w: {"desk"}, ("create", "wake in 2 h", "run")),
    Mutation(
        "its program takes it up, where it is refused a call", "_ended_run", lambda f: None,
        ("run, ended: report",), "program",
    ),
    Mutation(
        "nothing to do, at a limit", "_at_limit", lambda f: Why("It rests.", "Nothing to do."),
        ("say hello", "run to a limit"),
    ),
)  # fmt: skip


def caught(folder: Path, mutation: Mutation) -> str:
    """What the campaign notices with this falsification; "" when that is nothing."""
    found = lead(folder, FAMILIES[mutation.family], mutation.path)
    if fine := judge(folder, found).wrong:
        raise AssertionError(f"without any falsification: {fine[0]}")
    with ExitStack() as stack:
        # Wherever it is known by that name.
        for module in [one for one in (reading, facts, lists, to_do, decision) if hasattr(one, mutation.part)]:
            stack.enter_context(patch.object(module, mutation.part, mutation.instead))
        wrong = judge(folder, found).wrong
    return wrong[0].what if wrong else ""
