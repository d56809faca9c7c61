"""Types of an agent's tools and of its output: models are told them, and what they write becomes them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pydantic import BaseModel

import perdure
from perdure import tool
from perdure.agent.agent import Agent
from perdure.agent.models.openai import OpenAIModel
from perdure.agent.models.responses import body
from perdure.agent.models.scripted import ScriptedModel, calls
from perdure.agent.replay.replay import replay
from perdure.agent.requests import rebuild
from perdure.agent.tool_schema import ToolSpec
from perdure.errors import InvalidInput
from perdure.session.tools.answer_schema import misfit
from tests.agent.working import by_turn, opened, play
from tests.typed_examples import EXAMPLES, NAMES, ORDER, ORDER_JSON, WHO, WHO_JSON, Address, Colour, Customer, Order

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import Context
    from perdure.agent.models import Request


def echoing(kind: Any, seen: list[Any], **declared: Any) -> Any:
    """A tool that is given a value of a type and gives it back."""

    async def echo(value: Any) -> Any:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    return tool(echo, **declared)


def said(folder: Path, script: list[Any], tools: list[Any]) -> tuple[Any, list[str]]:
    """How a run ended, and what the model was told of its calls."""
    agent = Agent("a", model=ScriptedModel(by_turn(*script)), tools=tools)

    async def work() -> tuple[Any, list[str]]:
        async with opened(folder) as db:
            result = await agent.run(db, session="s", message="go")
            messages = (await db.read("s")).plain()["messages"]
            return result, [m["content"] for m in messages if m["role"] == "tool"]

    return play(work())


@pytest.mark.parametrize(("kind", "value", "found"), EXAMPLES, ids=NAMES)
def test_a_model_writes_json_and_the_tool_gets_its_type(tmp_path: Path, kind: Any, value: Any, found: Any) -> None:
    seen: list[Any] = []
    echo = echoing(kind, seen)
    result, told = said(tmp_path, [calls(("echo", {"value": found})), "done"], [echo])
    assert (result.status, seen) == ("done", [value])
    assert type(seen[0]) is type(value)
    assert (told[0] if isinstance(found, str) else json.loads(told[0])) == found
    # What models are told of it says so, too.
    assert misfit({"value": found}, ToolSpec(echo).parameters) == ""


def test_a_replay_and_a_resumed_run_give_equal_values(tmp_path: Path) -> None:
    seen: list[Any] = []
    echo = echoing(Customer, seen, if_unsure="retry")
    script = [calls(("echo", {"value": WHO_JSON})), calls(("echo", {"value": WHO_JSON | {"name": "Bo"}})), "done"]
    agent = Agent("a", model=ScriptedModel(by_turn(*script)), tools=[echo])

    async def work() -> None:
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", message="go", max_turns=1)).status == "max_turns"
        async with opened(tmp_path) as db:
            assert (await agent.run(db, session="s", max_turns=5)).status == "done"
            assert [one.name for one in seen] == ["Ana", "Bo"]
            assert seen[0] == WHO
            assert (await replay(db, "s", agent=agent)).identical

    play(work())


def test_a_tool_is_told_with_its_types() -> None:
    @tool
    def order(what: Order, colour: Colour = Colour.RED, who: Customer | None = None) -> None:
        """Order.

        Args:
            colour: which one
        """

    parameters = ToolSpec(order).parameters
    assert parameters["required"] == ["what"]
    assert parameters["properties"]["colour"]["description"] == "which one"
    assert parameters["properties"]["colour"]["default"] == "red"
    # Every reference leads somewhere.
    text = json.dumps(parameters)
    named = {part.partition('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named
    assert named <= set(parameters["$defs"])


def test_a_plain_tool_is_told_as_it_was_before() -> None:
    @tool
    def add(a: int, b: list[str] | None = None) -> int:
        """Add.

        Args:
            a: one
        """
        return a

    assert ToolSpec(add).parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "one"},
            "b": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ('{"value": {"orderNumber": "1", "lines": [{"sku": "a", "price": 0}], "at": "2026-01-01"}}', "more than 0"),
        ('{"value": {"orderNumber": "1"}}', "lines: Field required"),
        ('{"value": NaN}', "NaN is no number in JSON"),
        ('{"value": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deep"),
        ('{"value": ' + "9" * 5000 + "}", "the arguments of echo are not JSON: Exceeds the limit"),
        ('{"value": "\\ud800"}', "do not fit"),
    ],
)
def test_what_does_not_fit_is_told_to_the_model(tmp_path: Path, arguments: str, wrong: str) -> None:
    seen: list[Any] = []
    result, told = said(tmp_path, [calls(("echo", arguments)), "I see"], [echoing(Order, seen)])
    assert (result.status, seen) == ("done", [])
    assert wrong in json.loads(told[0])["error"]


@pytest.mark.parametrize("arguments", ['{"value": "\\ud800"}', '{"value": ' + "[" * 300 + "]" * 300 + "}"])
def test_what_no_session_can_keep_is_told_to_the_model(tmp_path: Path, arguments: str) -> None:
    seen: list[Any] = []
    result, told = said(tmp_path, [calls(("echo", arguments)), "I see"], [echoing(Any, seen)])
    assert (result.status, seen) == ("done", [])
    assert "cannot be kept" in json.loads(told[0])["error"]


def test_a_type_that_cannot_be_found_is_refused_with_what_to_do() -> None:
    @tool
    def look(at: Path, ctx: Context) -> str:
        return str(at)

    with pytest.raises(InvalidInput, match="the type 'Path' of at cannot be found when it runs: import it outside"):
        Agent("a", model=ScriptedModel([]), tools=[look])


def test_a_result_without_json_is_told_noted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def tags() -> Any:
        return {"tags": {1, 2}}

    with caplog.at_level(logging.WARNING, "perdure"):
        result, told = said(tmp_path, [calls(("tags", {})), "done"], [tags])
    assert result.status == "done"
    assert "it is a set, which is not JSON" in told[0]
    assert "tags was done (effect ef_" in result.notes[0]
    assert "Have it return JSON" in caplog.text
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        assert any("tags was done" in str(c.more.get("note")) for c in db.history("s"))


def test_edited_arguments_of_an_agents_call_are_checked(tmp_path: Path) -> None:
    paid: list[Any] = []

    @tool(approve=lambda a: a["amount"] > Decimal(1))
    def pay(who: Customer, amount: Decimal) -> Decimal:
        paid.append((who, amount))
        return amount

    script = [calls(("pay", {"who": WHO_JSON, "amount": 5.5})), "done"]
    agent = Agent("a", model=ScriptedModel(by_turn(*script)), tools=[pay])

    async def work() -> None:
        async with opened(tmp_path) as db:
            first = (await agent.run(db, session="s", message="go")).approvals[0]
            assert first.args["amount"] == "5.5"
            await db.approve("s", first.id, by="ana", args={"who": WHO_JSON, "amount": "much"})
            second = (await agent.run(db, session="s")).approvals[0]
            assert "the edited arguments do not fit: pay: amount does not fit" in second.because
            await db.approve("s", second.id, by="ana", args={"who": WHO_JSON, "amount": 4})
            assert (await agent.run(db, session="s")).status == "done"

    play(work())
    assert paid == [(WHO, Decimal(4))]


def test_a_tool_from_a_json_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    seen: list[Any] = []
    look = tool(lambda **given: seen.append(given), name="look", description="Look around.", schema=schema, read=True)
    script = [calls(("look", {"city": "Bonn"})), calls(("look", {"city": "Rome"})), "done"]
    result, told = said(tmp_path, script, [look])
    assert (result.status, seen) == ("done", [{"city": "Rome"}])
    assert "city of the input of look is one of 'Rome', 'Oslo'" in told[0]
    assert ToolSpec(look).as_json() == {"name": "look", "description": "Look around.", "parameters": schema}


# -- output -----------------------------------------------------------------------------------------------------------


class Reply(BaseModel):
    text: str
    orders: list[Order] = []


@dataclass
class Tree:
    name: str
    parts: list[Tree]


OUTPUTS: list[Any] = [*EXAMPLES, (Reply, Reply(text="x", orders=[ORDER]), {"text": "x", "orders": [ORDER_JSON]})]


@pytest.mark.parametrize(("kind", "value", "found"), OUTPUTS)
def test_an_output_of_any_type(tmp_path: Path, kind: Any, value: Any, found: Any) -> None:
    agent = Agent("a", model=ScriptedModel([json.dumps(found)]), output=kind)

    async def work() -> None:
        async with opened(tmp_path) as db:
            result = await agent.run(db, session="s", message="go", key="k")
            assert (result.status, result.output) == ("done", value)
            assert (await agent.run(db, session="s", message="go", key="k")).output == value

    play(work())


def test_an_output_that_never_fits_fails_the_run_and_says_why(tmp_path: Path) -> None:
    asked: list[str] = []

    def script(request: Request) -> str:
        asked.append(request.messages[-1]["content"])
        return '{"text": "x", "orders": [{"orderNumber": "1"}]}' if len(asked) < 6 else '{"text": "fine"}'

    agent = Agent("a", model=ScriptedModel(script), output=Reply)

    async def work() -> None:
        async with opened(tmp_path) as db:
            result = await agent.run(db, session="s", message="go")
            assert (result.status, result.output, result.turns) == ("failed", None, 3)
            assert "3 answers in a row did not fit output=: orders.0.lines: Field required" in result.reason
            assert (await db.look("s")).status == "failed"
            assert "orders.0.lines: Field required" in asked[1]
            # Whoever runs it again has it asked again; what fits in the end counts.
            assert (await agent.run(db, session="s")).output == Reply(text="fine")

    play(work())
    assert len(asked) == 6


def test_a_strict_schema_is_sent_where_the_provider_has_it() -> None:
    def sent(kind: Any, **options: Any) -> dict[str, Any]:
        model = OpenAIModel("m", api_key="k", **options)
        params = Agent("a", model=model, output=kind).setup()["params"]
        return params["response_format"]["json_schema"]

    strict = sent(Reply, provider="openai")
    assert strict["strict"] is True
    parts = [strict["schema"], *strict["schema"]["$defs"].values()]
    assert all(p["additionalProperties"] is False and p["required"] == list(p["properties"]) for p in parts)
    assert "default" not in json.dumps(strict)
    assert "strict" not in sent(Reply, provider="ollama")
    assert "strict" not in sent(Reply, provider="openai", base_url="http://127.0.0.1:1/v1")
    # What the rules cannot say is sent as it is.
    assert "strict" not in sent(dict[str, int], provider="openai")
    tree = sent(Tree, provider="openai")["schema"]
    assert (tree["type"], "Tree" in tree["$defs"]) == ("object", True)

    request = perdure_request({"response_format": {"type": "json_schema", "json_schema": strict}})
    assert body(request, encrypted=False)["text"]["format"]["strict"] is True


def perdure_request(params: dict[str, Any]) -> Any:
    from perdure.agent.models import Request

    return Request("m", [{"role": "user", "content": "x"}], [], params)


def test_a_child_with_an_output_tells_its_parent_json(tmp_path: Path) -> None:
    child = Agent("child", model=ScriptedModel([json.dumps(WHO_JSON)]), output=Customer)
    script = [calls(("child", {"task": "who?"})), "done"]
    result, told = said(tmp_path, script, [child.as_tool()])
    assert (result.status, json.loads(told[0])) == ("done", WHO_JSON)


def test_an_output_that_is_no_type_of_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="output= is a type that JSON can be made into"):
        Agent("a", model=ScriptedModel([]), output=ScriptedModel)


def test_a_request_with_a_typed_output_is_rebuilt(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedModel(['{"street": "x"}']), output=Address)

    async def work() -> int:
        async with opened(tmp_path) as db:
            return (await agent.run(db, session="s", message="go")).step

    step = play(work())
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db:
        schema = rebuild(db, "s", step).params["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["since"]["format"] == "date"
    assert msgspec.convert({"street": "x"}, Address) == Address("x")


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "sNaN"])
def test_an_amount_that_is_no_number_does_not_fit(written: str) -> None:
    made: list[Any] = []

    @perdure.tool(approve=lambda a: a["amount"] > 100)
    def pay(amount: Decimal) -> None:
        """Pay."""
        made.append(amount)

    agent = perdure.Agent("a", model=perdure.ScriptedModel([calls(("pay", {"amount": written})), "ok"]), tools=[pay])
    url = f"memory://no-number-{written}"
    with perdure.open(url) as db:
        assert agent.run_sync(url, session="s", message="go").status == "done"
        (told,) = [m["content"] for m in db.read("s").messages if m["role"] == "tool"]
        assert "no number" in told
        with db.session("t") as s, pytest.raises(perdure.errors.InvalidInput, match="no number"):
            s.call(pay, Decimal(written))
    assert made == []


@pytest.mark.parametrize("written", ["12345678901234567.89", '"12345678901234567.89"', "0.123456789012345678"])
def test_a_decimal_is_read_as_the_model_wrote_it(written: str) -> None:
    @tool
    def pay(amount: Decimal, rate: float, more: dict[str, Any], all: list[Decimal]) -> None:
        """Pay."""

    raw = f'{{"amount": {written}, "rate": 0.5, "more": {{"tip": 1.5, "of": "2"}}, "all": [1, {written}]}}'
    text = written.strip('"')
    wanted = {"amount": text, "rate": 0.5, "more": {"tip": 1.5, "of": "2"}, "all": ["1", text]}
    assert ToolSpec(pay).arguments(raw) == wanted
