"""Exceptions whose text no store can write down, whose class raises when it is looked at, or that are no ``Exception``.

Looking at one never raises: the call that it ended has its outcome, and the session goes on.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Context, EffectFailed, EffectRaised, FunctionModel, ModelError, ScriptedModel, calls, tool
from perdure.session.tools.exceptions import Meaning, described, is_of_the_call, meaning
from perdure.testing import RecordingMiss

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = os.fsdecode(b"invoice-\xff.pdf")
SHOWN = "invoice-\\udcff.pdf"
DECLARED: dict[str, dict[str, Any]] = {
    "read": {"read": True},
    "retry": {"if_unsure": "retry"},
    "function": {"if_unsure": lambda path: perdure.Unknown()},
    "ask": {},
    "report": {"if_unsure": "report"},
}


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit(5)


class NoParts(Exception):
    """Of an answer that was never read, as clients have them."""

    @property
    def response(self) -> Any:
        raise TypeError("no response")

    @property
    def status_code(self) -> Any:
        raise SystemExit(5)

    @property
    def code(self) -> Any:
        raise MyOwn


class NoCause(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in ("__cause__", "__context__", "__traceback__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class NoModule(Exception):
    pass


NoModule.__module__ = None  # type: ignore[assignment]


class MyOwn(BaseException):
    """Of a program, and no sign that it is to end."""


STRANGE: list[Callable[[], BaseException]] = [
    NoText, NoParts, NoCause, NoModule, MyOwn, lambda: BaseExceptionGroup("several", [MyOwn()]),
    lambda: ValueError(NAME), lambda: OSError(2, "No such file", NAME), StopAsyncIteration,
]  # fmt: skip
NAMES = [
    "no text", "no parts", "no cause", "no module", "base", "group", "surrogate", "file name", "stop"
]  # fmt: skip


def run(pay: Any) -> tuple[Any, list[str], int]:
    """An agent that calls a tool: what the run ended with at first, what its model was told, what it is then."""

    async def main() -> tuple[Any, list[str], int]:
        agent = Agent("x", model=ScriptedModel([calls(("pay", {"path": "p"})), "done"]), tools=[pay])
        async with perdure.open_async("memory://", maintain=False) as db:
            result = await agent.run(db, session="s", message="go", key="k")
            told = [m["content"] for m in (await db.read("s")).messages.plain() if m["role"] == "tool"]
            assert (await db.verify()).findings == ()
            return result.status, told, len(result.raised)

    return asyncio.run(main())


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("make", STRANGE, ids=NAMES)
def test_a_call_that_ends_with_one_has_its_outcome(make: Any, way: str) -> None:
    made: list[str] = []

    def ends(path: str) -> str:
        made.append(path)
        raise make()

    async def ends_awaited(path: str) -> str:
        return ends(path)

    status, told, raised = run(tool(ends if way == "sync" else ends_awaited, name="pay"))
    assert (status, len(told), raised, made) == ("done", 1, 1, ["p"])
    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(EffectRaised):
        s.call(tool(ends), "p")


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("kind", [perdure.NotDone, perdure.ToolError, perdure.ModelRetry])
def test_what_a_tool_says_of_a_file_is_written_down(declared: str, kind: Any) -> None:
    made: list[str] = []

    @tool(**DECLARED[declared])
    def pay(path: str) -> str:
        made.append(path)
        raise kind(f"cannot read {NAME}")

    status, (told,), _ = run(pay)
    assert (status, made) == ("done", ["p"])
    assert SHOWN in told.replace("\\\\", "\\")
    with perdure.open("memory://") as db, db.session("s") as s:
        if declared != "read":
            with pytest.raises(EffectFailed, match="cannot read invoice"):
                s.call(pay, "p")


def test_functions_that_are_asked_about_a_call_may_raise_one() -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise MyOwn(NAME)

    @tool(if_unsure=fails)
    def lost(path: str) -> str:
        raise TimeoutError(NAME)

    @tool(poll=fails)
    def later(path: str) -> Any:
        return perdure.Later("job")

    @tool(approve=fails)
    def asks(path: str) -> str:
        return path

    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(perdure.InDoubt, match="MyOwn"):
            s.call(lost, "p")
        with pytest.raises(perdure.ResultPending, match="MyOwn"):
            s.call(later, "p")
        with pytest.raises(perdure.ApprovalRuleFailed, match="MyOwn"):
            s.call(asks, "p")
    with perdure.open("memory://") as db, db.session("s") as s, pytest.raises(perdure.ApprovalNeeded):
        s.call(tool(lambda path, ctx: ctx.ask(f"what is {NAME}?"), name="ask"), "p")


def test_a_handle_that_cannot_be_kept_has_raised() -> None:
    @tool
    def pay(path: str) -> Any:
        return perdure.Later({"jobs": {1}})

    status, (told,), raised = run(pay)
    assert (status, raised) == ("done", 1)
    assert "what pay gave to Later(...)" in told


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), RecordingMiss("x")], ids=repr)
def test_what_ends_the_program_is_none_of_the_call(error: BaseException) -> None:
    assert not is_of_the_call(error)
    assert not is_of_the_call(BaseExceptionGroup("several", [error, MyOwn()]))


def test_what_is_kept_of_them() -> None:
    try:
        raise NoCause("x")
    except NoCause as e:
        error = e
    assert meaning(error) is Meaning.RAISED
    kept = described(error)
    assert kept["message"] == "x"
    assert "in test_what_is_kept_of_them" in kept["traceback"]
    assert described(NoText())["message"] == "(its text cannot be told: SystemExit)"
    assert described(ValueError(NAME))["message"] == SHOWN


def test_words_of_others_keep_nothing_from_being_written() -> None:
    def fails(request: Any) -> str:
        raise ModelError(f"the provider says {NAME}")

    async def main() -> None:
        async with perdure.open_async("memory://", maintain=False) as db:
            result = await Agent("x", model=FunctionModel(fails)).run(db, session="s", message="go", key="k")
            assert (result.status, result.reason) == ("failed", f"the provider says {SHOWN}")
            await db.post("s", "one", key="one")
            await db.withdraw("s", "one", by="ana", reason=NAME)
            assert await db.cancel("s", by="ana", reason=NAME)
            async with db.session("t") as s:
                await s.commit(note=NAME)
            assert [c.more["note"] for c in await db.history("t")] == [SHOWN]

    asyncio.run(main())


def test_a_decision_gives_any_reason() -> None:
    @tool(approve=True)
    def pay(path: str, ctx: Context) -> str:
        return path

    with perdure.open("memory://") as db, db.session("s") as s:
        with pytest.raises(perdure.ApprovalNeeded) as asked:
            s.call(pay, "p")
        db.reject("s", asked.value.approval, by="ana", reason=NAME)
        with pytest.raises(EffectFailed, match="invoice"):
            s.call(pay, "p")
