"""What may be said to an agent, and what a program has put into a conversation that no model can be sent."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel, InvalidInput
from perdure.agent.branching_off import say_on
from perdure.system.wording import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

NO_MESSAGES: list[Any] = [
    {"role": "usr", "content": "x"}, {"role": ["user"], "content": "x"}, {"text": "x"}, {"role": "user"},
    {"role": "user", "content": None}, {"role": "user", "content": 5}, 5, True, ["a", "b"], [{"text": "x"}], "",
    " ", [],
    {"role": "user", "content": ""},
]  # fmt: skip


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**kwargs: Any) -> None:
        asyncio.run(test(**kwargs))

    return run


def agent() -> tuple[Agent, list[Any]]:
    seen: list[Any] = []
    return Agent("a", model=FunctionModel(lambda request: seen.append(request.messages[-1]) or "hi")), seen


@pytest.mark.parametrize("message", NO_MESSAGES, ids=repr)
@awaited
async def test_what_is_no_message_is_refused_before_anything_is_written(message: Any):
    told, seen = agent()
    async with perdure.open_async("memory://") as db:
        for key in (None, "k"):
            with pytest.raises(InvalidInput, match=r"^nothing was said: "):
                await told.run(db, session="s", message=message, key=key)
        with pytest.raises(InvalidInput, match=r"^nothing was said: "):
            await perdure.submit_async(db, "s", message, agent="a")
        with pytest.raises(perdure.NotFound):
            await db.look("s")
        await told.run(db, session="b", message="x")
        await (await db.session("b")).fork("try")
        with pytest.raises(InvalidInput, match=r"^nothing was said: "):
            await say_on(db, "b", "try", message)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ("x", {"role": "user", "content": "x"}), ({"role": "system", "content": "x"},) * 2,
        ({"content": "x"}, {"role": "user", "content": "x"}),
        ([perdure.text("x")], {"role": "user", "content": [{"type": "text", "text": "x"}]}),
    ],
    ids=repr,
)  # fmt: skip
def test_a_message_is_text_a_dict_or_parts(message: Any, sent: Any):
    told, seen = agent()
    assert told.run_sync("memory://", session="s", message=message).ok
    assert seen == [sent]


@pytest.mark.parametrize("body", [{"order": 5}, 5, ["a"], {"role": "usr", "content": "x"}], ids=repr)
@awaited
async def test_what_was_posted_without_an_agent_is_told_to_one_as_json(body: Any):
    told, seen = agent()
    async with perdure.open_async("memory://") as db:
        assert await db.post("s", body)
        assert (await told.run(db, session="s")).ok
    assert seen == [{"role": "user", "content": as_json(body)}]


@pytest.mark.parametrize("odd", ["text", 5, {"role": "usr", "content": "x"}, {"content": "x"}], ids=repr)
@awaited
async def test_what_a_program_has_put_there_ends_the_run_and_says_where_and_what_to_do(odd: Any):
    told, seen = agent()
    async with perdure.open_async("memory://") as db:
        await told.run(db, session="s", message="Hello.")
        async with db.session("s") as s:
            s.messages.append(odd)
            await s.commit()
        for message in ("More.", None):
            result = await told.run(db, session="s", message=message)
            assert result.status == "failed"
            assert "messages[2] of session 's' cannot be sent to a model" in result.reason
            assert "s.messages[2] = " in result.reason
        assert len(seen) == 1
        async with db.session("s") as s:
            s.messages[2] = {"role": "user", "content": "..."}
            await s.commit()
        result = await told.run(db, session="s")
        assert result.ok
        assert seen[1:] == [{"role": "user", "content": "More."}]
