"""Recordings: what models answered and tools returned is given again offline; what was not recorded is a loud miss."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Later, NotDone, ScriptedModel, tool
from perdure.agent.models.scripted import calls
from perdure.errors import InvalidInput, ModelUnavailable
from perdure.testing import RecordingMiss, recorded

if TYPE_CHECKING:
    from perdure.agent.models import Request

WORLD: list[Any] = []
"""What really happened."""


@pytest.fixture(autouse=True)
def untouched_world() -> None:
    WORLD.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "recording.json"


@tool(read=True)
def look_up(order: str) -> dict[str, Any]:
    """Look an order up."""
    WORLD.append(order)
    return {"order": order, "paid": 12.5}


@tool(if_unsure="retry")
async def refund(order: str, ctx: perdure.Context) -> str:
    """Refund an order."""
    WORLD.append(("refund", order))
    return f"refunded {order} as {ctx.effect_id}"


def asked(request: Request, *said: Any) -> Any:
    WORLD.append("model")
    at = sum(m["role"] == "assistant" for m in request.messages)
    return said[at]


def support(instructions: str = "Be kind.", **options: Any) -> Agent:
    def script(request: Request) -> Any:
        return asked(request, calls(("look_up", {"order": "A1"})), calls(("refund", {"order": "A1"})), "All done.")

    return Agent("support", model=ScriptedModel(script), tools=[look_up, refund], instructions=instructions, **options)


def run(agent: Agent, session: str = "s", message: str = "Refund A1") -> perdure.RunResult:
    return agent.run_sync("memory://", session=session, message=message)


def test_a_run_is_given_again_without_model_and_tools(path: Path):
    with recorded(path, record=True) as recording:
        first = run(support())
    assert recording.record
    assert WORLD == ["model", "A1", "model", ("refund", "A1"), "model"]
    WORLD.clear()
    with recorded(path):
        second = run(support())
    assert WORLD == []
    assert (first.status, first.text) == (second.status, second.text) == ("done", "All done.")
    assert (first.turns, first.spent) == (second.turns, second.spent)


def test_nobody_stands_in_between_afterwards(path: Path):
    with recorded(path, record=True):
        run(support())
    WORLD.clear()
    run(support())
    assert len(WORLD) == 5


def test_the_file_is_for_people_to_read(path: Path):
    with recorded(path, record=True):
        run(support())
    read = json.loads(path.read_text("utf-8"))
    assert list(read) == ["perdure_recording", "models", "tools"]
    first, second, _ = read["models"]
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert (second["messages_as_before"], [m["role"] for m in second["messages"]]) == (2, ["assistant", "tool"])
    assert "tools" in first
    assert "tools" not in second
    assert read["tools"][0] == {
        "tool": "look_up", "args": {"order": "A1"}, "outcomes": [{"returned": {"order": "A1", "paid": 12.5}}],
    }  # fmt: skip


def test_a_stream_is_given_again_piece_by_piece(path: Path):
    async def stream() -> list[str]:
        events = [e async for e in support().stream("memory://", session="s", message="Refund A1")]
        said = [e.data["text"] for e in events if e.kind == "delta"]
        assert events[-1].kind == "result"
        return ["".join(said)]

    with recorded(path, record=True):
        first = asyncio.run(stream())
    WORLD.clear()
    with recorded(path):
        assert asyncio.run(stream()) == first == ["All done."]
    assert WORLD == []


def test_several_agents_share_one_recording(path: Path):
    def team() -> Agent:
        clerk = Agent("clerk", model=ScriptedModel(lambda r: asked(r, "It was paid."), name="small"))

        def script(request: Request) -> Any:
            return asked(request, calls(("clerk", {"task": "was A1 paid?"})), "Paid.")

        return Agent("boss", model=ScriptedModel(script, name="large"), tools=[clerk.as_tool()])

    with recorded(path, record=True):
        first = run(team())
    assert {entry.get("model") for entry in json.loads(path.read_text())["models"]} == {"large", "small"}
    WORLD.clear()
    with recorded(path):
        assert run(team()).text == first.text == "Paid."
    assert WORLD == []


def test_many_sessions_at_once_are_told_apart(path: Path):
    def echo(request: Request) -> str:
        WORLD.append("model")
        return f"You said {request.messages[-1]['content']}"

    async def crowd() -> list[str]:
        agent = Agent("echo", model=ScriptedModel(echo, delay=0.01))
        async with perdure.open_async("memory://") as db:
            runs = [agent.run(db, session=f"s{n}", message=f"word {n % 5}") for n in range(10)]
            return [result.text for result in await asyncio.gather(*runs)]

    with recorded(path, record=True):
        first = asyncio.run(crowd())
    WORLD.clear()
    with recorded(path):
        assert asyncio.run(crowd()) == first
    assert WORLD == []


def test_calls_past_an_agent_are_recorded_too(path: Path):
    def work() -> Any:
        with perdure.open("memory://") as db, db.session("s") as s:
            return s.call(look_up, "A7")

    with recorded(path, record=True):
        first = work()
    with recorded(path):
        assert work() == first
    assert WORLD == ["A7"]


def test_the_ids_of_effects_differ_and_do_not_matter(path: Path):
    """A large result is told by the id of its effect, and read on by it."""

    @tool(read=True)
    def everything() -> str:
        """All there is."""
        return "x" * 40_000

    def script(request: Request) -> Any:
        last = request.messages[-1]["content"]
        if request.messages[-1]["role"] == "user":
            return calls(("everything", {}))
        if "large_result" in last:
            return calls(("read_result", {"ref": json.loads(last)["large_result"], "offset": 5, "limit": 10}))
        return f"read {json.loads(last)['text']}"

    def reader() -> Agent:
        return Agent("reader", model=ScriptedModel(script), tools=[everything])

    with recorded(path, record=True):
        first = run(reader())
    assert first.text == "read xxxxxxxxxx"
    assert "ef_#1" in path.read_text()
    with recorded(path):
        assert run(reader()).text == first.text


def test_bytes_errors_and_results_that_come_later_are_given_again(path: Path):
    class OutOfStockError(LookupError):
        pass

    @tool(read=True)
    def picture(n: int) -> Any:
        WORLD.append(n)
        if n == 1:
            raise OutOfStockError("none left")
        if n == 2:
            raise TimeoutError("too slow")
        return {"data": b"\x00\xff", "n": 2**70}

    @tool
    def order(what: str) -> Any:
        WORLD.append(what)
        if what == "never":
            raise NotDone("sold out")
        return Later({"job": 7})

    def work() -> list[Any]:
        found: list[Any] = []
        with perdure.open("memory://") as db, db.session("s") as s:
            found.append(s.call(picture, 0))
            for call in (lambda: s.call(picture, 1), lambda: s.call(picture, 2), lambda: s.call(order, "never")):
                try:
                    call()
                except Exception as e:
                    found.append((type(e).__name__, str(e).partition(":")[0], isinstance(e, LookupError)))
            with pytest.raises(perdure.errors.ResultPending):
                s.call(order, "later")
            found.append(s.effects()[-1]["handle"])
        return found

    with recorded(path, record=True):
        first = work()
    WORLD.clear()
    with recorded(path):
        assert work() == first
    assert WORLD == []
    assert first[0] == {"data": b"\x00\xff", "n": 2**70}
    assert first[1][0] == "OutOfStockError"


@dataclass
class Bike:
    frame: str
    built: datetime | None = None


class Kind(Enum):
    CITY = "city"


def typed(kind: Any, value: Any) -> Any:
    """A tool that takes and returns one type, the call and what comes of it."""

    def ride(x: Any) -> Any:
        WORLD.append(x)
        return x

    ride.__annotations__ = {"x": kind, "return": kind}
    with perdure.open("memory://") as db, db.session("s") as s:
        given = s.call(tool(ride, if_unsure="retry"), value)
        return given, s.effects()[0]["result"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Bike, Bike("F-1", datetime(2026, 1, 1, tzinfo=UTC))), (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (Kind, Kind.CITY),
        (Decimal, Decimal("1.5")), (bytes, b"\xff"), (dict[str, list[Bike]], {"all": [Bike("F-2")]}),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_and_results_are_recorded_as_the_journal_has_them_and_come_back_typed(
    path: Path, kind: Any, value: Any
):
    with recorded(path, record=True):
        first = typed(kind, value)
    assert [value] == WORLD
    with recorded(path):
        assert typed(kind, value) == first
    assert (WORLD, first[0], type(first[0])) == ([value], value, type(value))


def test_what_a_result_that_comes_later_is_called_may_be_typed(path: Path):
    def poll(handle: Bike) -> Any:
        return handle

    @tool(poll=poll)
    def order(what: str) -> Any:
        WORLD.append(what)
        return Later(Bike(what))

    def work() -> Any:
        with perdure.open("memory://") as db, db.session("s") as s:
            with pytest.raises(perdure.errors.ResultPending):
                s.call(order, "F-3")
            return s.effects()[-1]["handle"]

    with recorded(path, record=True):
        first = work()
    with recorded(path):
        assert (work(), WORLD) == (first, ["F-3"])


def test_a_model_that_failed_fails_again(path: Path):
    class Down(ScriptedModel):
        async def answer(self, request: Request, on_delta: Any = None) -> Any:
            WORLD.append("model")
            raise ModelUnavailable("nobody answers")

    for record in (True, False):
        with recorded(path, record=record):
            result = run(Agent("support", model=Down([])))
        assert (result.status, "nobody answers" in result.reason) == ("failed", True)
    assert WORLD == ["model"]


def test_no_secret_is_written_down(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOP_API_KEY", "sk-very-secret-1")

    @tool(read=True)
    def fetch(api_key: str, url: str) -> str:
        """Fetch."""
        return f"{url} by {api_key}"

    def agent(key: str) -> Agent:
        script = [calls(("fetch", {"api_key": key, "url": "u?k=sk-very-secret-1"})), "ok"]
        headers = {"extra_headers": {"Authorization": f"Bearer {key}"}, "max_tokens": 100}
        return Agent("a", model=ScriptedModel(script), tools=[fetch], params=headers)

    with recorded(path, record=True):
        run(agent("sk-other-secret-2"), message="my key is sk-very-secret-1")
    text = path.read_text("utf-8")
    assert "sk-very-secret-1" not in text
    assert "Bearer" not in text
    assert '"max_tokens": 100' in text
    assert "(SHOP_API_KEY)" in text


# -- misses ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(path: Path) -> Path:
    with recorded(path, record=True):
        run(support())
    WORLD.clear()
    return path


def test_a_miss_says_what_was_asked_what_differs_where_and_how_to_record(made: Path):
    with pytest.raises(RecordingMiss) as miss, recorded(made):
        run(support("Be rude."))
    said = str(miss.value)
    assert "scripted was asked what is not in the recording: 2 messages, the last one of user: 'Refund A1'" in said
    assert 'differs in messages[0].content:\n    recorded: "Be kind."\n    now:      "Be rude."' in said
    assert f"recording: {made}" in said
    assert "PERDURE_RECORD=1" in said
    assert "test_recording.py:" in said
    assert WORLD == []


def test_the_nearest_of_the_recorded_ones_is_shown(made: Path):
    """The second request differs in what a tool said: the first one is further away."""
    recording = json.loads(made.read_text())
    recording["tools"][0]["outcomes"][0]["returned"]["paid"] = 13
    made.write_text(json.dumps(recording))
    with pytest.raises(RecordingMiss, match=r"differs in messages\[3\]\.content:") as miss, recorded(made):
        run(support())
    assert "12.5" in str(miss.value)
    assert ": 13" in str(miss.value)


def test_a_setting_that_changed_is_named(made: Path):
    with pytest.raises(RecordingMiss, match=r"differs in params\.temperature"), recorded(made):
        run(support(params={"temperature": 0.2}))


def test_a_long_text_is_cut_to_where_it_differs(path: Path):
    def agent(end: str) -> Agent:
        return Agent("a", model=ScriptedModel(["ok"]), instructions="x" * 5000 + end + "y" * 5000)

    with recorded(path, record=True):
        run(agent("one"))
    with pytest.raises(RecordingMiss) as miss, recorded(path):
        run(agent("two"))
    assert "xone" in str(miss.value)
    assert "xtwo" in str(miss.value)
    assert len(str(miss.value)) < 1500


def test_a_call_that_was_not_recorded_is_a_miss_and_is_not_made(path: Path):
    def work(order: str) -> None:
        with perdure.open("memory://") as db, db.session("s") as s:
            s.call(look_up, order)

    with recorded(path, record=True):
        work("A1")
    with pytest.raises(RecordingMiss) as miss, recorded(path):
        work("B2")
    assert "look_up was called as it is not in the recording" in str(miss.value)
    assert 'differs in order:\n    recorded: "A1"\n    now:      "B2"' in str(miss.value)
    assert WORLD == ["A1"]


def test_what_is_asked_more_often_than_recorded_is_a_miss(path: Path):
    def work(times: int) -> None:
        with perdure.open("memory://") as db, db.session("s") as s:
            for _ in range(times):
                s.call(look_up, "A1")

    with recorded(path, record=True):
        work(2)
    with pytest.raises(RecordingMiss, match="recorded 2 times, and asked once more"), recorded(path):
        work(3)


def test_what_was_recorded_and_never_asked_for_is_a_wrong_recording(made: Path):
    with pytest.raises(RecordingMiss, match="never asked for") as miss, recorded(made):
        pass
    assert "look_up" in str(miss.value)


def test_a_miss_that_somebody_swallows_is_raised_in_the_end(made: Path):
    def swallow() -> None:
        try:
            run(support("Be rude."))
        except BaseException:
            return

    with pytest.raises(RecordingMiss, match="Be rude"), recorded(made):
        swallow()


def test_without_a_recording_the_first_request_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(RecordingMiss, match="there is no such file") as miss, recorded(tmp_path / "none.json"):
        run(support())
    assert "nothing of that kind was recorded" in str(miss.value)
    assert WORLD == []


def test_a_result_that_is_not_json_cannot_be_recorded(path: Path):
    @tool(read=True)
    def now() -> Any:
        return object()

    def work() -> None:
        with perdure.open("memory://") as db, db.session("s") as s:
            s.call(now)

    with pytest.raises(RecordingMiss, match="now returned an object, which is not JSON"), recorded(path, record=True):
        work()
    assert not path.exists()


def test_a_run_that_failed_leaves_no_recording(path: Path):
    def work() -> None:
        run(support())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), recorded(path, record=True):
        work()
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "{}", '{"perdure_recording": 1}', '{"perdure_recording": 99, "models": [], "tools": []}',
     '{"perdure_recording": 1, "models": [{"digest": "x"}], "tools": []}',
     '{"perdure_recording": 1, "models": [], "tools": [1]}'],
)  # fmt: skip
def test_what_is_no_recording_is_refused_by_name(tmp_path: Path, text: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"x\.json"), recorded(tmp_path / "x.json"):
        pass


def test_a_request_that_was_edited_in_the_file_is_refused(made: Path):
    made.write_text(made.read_text().replace("Be kind.", "Be rude."))
    with pytest.raises(InvalidInput, match="was edited"), recorded(made):
        pass


def test_the_variable_asks_for_a_recording(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_RECORD", "1")
    with recorded(path):
        run(support())
    assert path.exists()
    monkeypatch.setenv("PERDURE_RECORD", "0")
    WORLD.clear()
    with recorded(path):
        run(support())
    assert WORLD == []
