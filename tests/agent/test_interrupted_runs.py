"""A run that is ended by what is no error gives back its session: the next one in the same process goes on with it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, FunctionModel
from perdure.agent.models.scripted import calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def swallows() -> Iterator[int]:
    with suppress(BaseException):
        yield 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("deps", [None, swallows])
def test_the_next_run_goes_on(tmp_path: Path, raised: type[BaseException], asynchronous: bool, deps: Any):
    made: list[int] = []

    def charge(order: str) -> str:
        made.append(1)
        if len(made) == 1:
            raise raised
        return "paid"

    async def charge_awaited(order: str) -> str:
        return charge(order)

    def model(request: Any) -> Any:
        is_asked = request.messages[-1]["role"] == "user"
        return calls(("charge", {"order": "X"})) if is_asked else "well"

    pay = perdure.tool(charge_awaited if asynchronous else charge, name="charge", if_unsure="retry")

    def run() -> Any:
        agent = Agent("a", model=FunctionModel(model), tools=[pay], deps=deps)
        return agent.run_sync(f"sqlite:///{tmp_path}/a.db", session="s", message="go", key="m")

    kept: list[BaseException] = []
    try:
        run()
    except BaseException as e:
        # Its traceback holds whatever was left open: nothing is collected behind our back.
        kept.append(e)
    assert run().text == "well"
    assert len(made) == 2
    assert kept or deps is swallows
