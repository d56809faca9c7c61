"""A call that was done, and whose result is no JSON: that is told each time somebody asks for it, wherever he asks."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import Agent, FunctionModel, calls

VALUES = {"surrogate": "paid \ud800", "object": object(), "not a number": float("nan")}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("how", ["rewind", "fork", "cache", "shared cache"])
def test_a_program_is_told_the_same_and_nobody_pays_twice(db: perdure.Database, how: str, value: str) -> None:
    made: list[str] = []
    options: dict[str, Any] = {"cache": "7d"} if "cache" in how else {}
    if how == "shared cache":
        options["cache_scope"] = "shared"

    @perdure.tool(**options)
    def charge(order: str) -> Any:
        made.append(order)
        return VALUES[value]

    with db.session("s", owner="ana") as s:
        s.commit()
        with pytest.raises(perdure.NotJson, match="its result is lost"):
            s.call(charge, "X")
        if how == "rewind":
            s.rewind(1)
        elif how == "fork":
            s.fork("b", at=1)
            s.switch("b")
        if how != "shared cache":
            with pytest.raises(perdure.NotJson, match="its result is lost"):
                s.call(charge, "X")
    if how == "shared cache":
        with db.session("t", owner="ana") as s, pytest.raises(perdure.NotJson, match="its result is lost"):
            s.call(charge, "X")
    assert made == ["X"]


@pytest.mark.parametrize("how", ["rewind", "cache"])
def test_a_model_is_told_the_same(url: str, how: str) -> None:
    made: list[str] = []
    told: list[str] = []

    @perdure.tool(if_unsure="report", **({"cache": "7d"} if how == "cache" else {}))  # type: ignore[arg-type]
    def charge(order: str) -> str:
        made.append(order)
        return "paid \ud800"

    def model(request: Any) -> Any:
        last = request.messages[-1]
        if last["role"] == "user":
            return calls(("charge", {"order": "X"}))
        told.append(last["content"])
        return "bye"

    agent = Agent("a", model=FunctionModel(model), tools=[charge])
    with perdure.open(url) as db:
        with db.session("s") as s:
            s.commit()
        agent.run_sync(url, session="s", message="go")
        if how == "rewind":
            with db.session("s") as s:
                s.rewind(1)
        agent.run_sync(url, session="s", message="go again")
    assert (told[0], len(told), made) == (told[1], 2, ["X"])
    assert "it was done, and its result cannot be kept" in told[0]
