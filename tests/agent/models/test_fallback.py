"""A list of models: the next one is asked when one cannot answer, and what is recorded is who did."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import Agent, Compactor, FunctionModel, ModelError, ModelUnavailable, Window, calls, tool
from perdure.agent.models import Answer
from perdure.agent.models.fallback import REST
from perdure.agent.replay.replay import replay
from perdure.errors import ContextTooLong, InvalidInput
from perdure.testing import recorded

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.agent.models import Request


class Ailing(FunctionModel):
    """A model that says what it can, and is ill when it is told to be."""

    def __init__(self, name: str, say: Any = "fine", ill: Exception | None = None) -> None:
        super().__init__(self._said, name=name)
        self.say, self.ill = say, ill

    def _said(self, request: Request) -> Any:
        if self.ill is not None:
            raise self.ill
        return self.say(request) if callable(self.say) else self.say


@tool(read=True)
def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}"


def rain(request: Request) -> Any:
    """Ask the tool first, then tell."""
    return "Rain." if request.messages[-1]["role"] == "tool" else calls(("weather", {"city": "Paris"}))


def last(db: perdure.Database, session: str = "s") -> dict[str, Any]:
    """What the newest answer's checkpoint says."""
    return next(c.more for c in db.history(session) if "model" in c.more)


def test_in_one_run_the_one_that_failed_is_left_alone_for_a_while_and_the_next_run_asks_it_again():
    first, second = Ailing("first", rain, ModelUnavailable("down")), Ailing("second", rain)
    agent = Agent("guide", model=[first, second], tools=[weather])
    with perdure.open("memory://rest") as db:
        assert agent.run_sync("memory://rest", session="s", message="Rain?").text == "Rain."
        assert (first.asked, second.asked) == (1, 2)
        first.ill = None
        again = agent.run_sync("memory://rest", session="s", message="And now?")
        assert (again.text, again.notes, first.asked, second.asked) == ("Rain.", (), 3, 2)
        assert last(db)["model"]["name"] == "first"


def test_the_rest_is_over_after_a_while(perdure_clock: Any):
    from perdure.agent.models.fallback import Fallback

    fallback, models = Fallback(perdure_clock), (Ailing("first"), Ailing("second"))
    assert fallback.failed(models, models[0], ModelError("down"))
    fallback.answered()
    assert fallback.next(models) is models[1]
    perdure_clock.advance(REST)
    assert fallback.next(models) is models[0]
    # Where all rest, all are asked again.
    for model in models:
        fallback.failed(models, model, ModelError("down"))
    assert "none of 2 models" in str(fallback.all_failed(ModelError("down")))
    assert fallback.next(models) is models[0]


def test_who_goes_on_does_not_ask_again_for_an_answer_that_is_recorded():
    first, second = Ailing("first", rain, ModelUnavailable("down")), Ailing("second", rain)
    agent = Agent("guide", model=[first, second], tools=[weather])
    with perdure.open("memory://resume") as db:
        stopped = agent.run_sync("memory://resume", session="s", message="Rain?", max_turns=1)
        assert (stopped.status, first.asked, second.asked) == ("max_turns", 1, 1)
        first.ill = None
        done = agent.run_sync("memory://resume", session="s")
        # The call that the second one wanted is made, and told to the first one, whom nobody pays for the rest.
        assert (done.text, first.asked, second.asked) == ("Rain.", 2, 1)
        assert [c.more["model"]["name"] for c in db.history("s") if "model" in c.more] == ["first", "second"]
        assert done.notes == ()


def test_when_nobody_can_answer_each_is_told_and_the_session_goes_on_later():
    first, second = Ailing("first", ill=ModelUnavailable("down")), Ailing("second", ill=ModelError("no such model"))
    agent = Agent("guide", model=[first, second])
    with perdure.open("memory://none") as db:
        failed = agent.run_sync("memory://none", session="s", message="hi")
        assert failed.status == "failed"
        assert failed.reason == "none of 2 models could answer: first: down; second: no such model"
        # It is worth coming back: one of them is only down.
        assert db.look("s").status == "failed"
        assert next(iter(db.history("s"))).more["error"] == "ModelUnavailable"
        second.ill = None
        assert agent.run_sync("memory://none", session="s").text == "fine"


def test_a_request_that_is_too_long_is_cut_for_the_same_one_and_nobody_else_is_asked():
    def say(request: Request) -> str:
        if len(request.messages) > 4:
            raise ContextTooLong("too long")
        return "fine"

    first, second = Ailing("first", say), Ailing("second")
    agent = Agent("guide", model=[first, second], compactor=False, window=Window(keep_recent=1))
    with perdure.open("memory://long") as db:
        with db.session("s") as s:
            for n in range(8):
                s.messages.append({"role": ("user", "assistant")[n % 2], "content": f"word {n} " * 20})
            s.commit()
        assert agent.run_sync("memory://long", session="s", message="hi").text == "fine"
        assert second.asked == 0
        # Where nothing can be cut any more, the next one may have a larger window.
        first.say = lambda _: (_ for _ in ()).throw(ContextTooLong("still too long"))
        assert agent.run_sync("memory://long", session="s", message="hi again").text == "fine"
        assert second.asked == 1


def test_mistakes_of_the_program_are_not_taken_for_a_model_that_cannot_answer():
    second = Ailing("second")
    for mistake in (InvalidInput("this request cannot be sent"), ValueError("my own bug")):
        agent = Agent("guide", model=[Ailing("first", ill=mistake), second])
        with pytest.raises(type(mistake), match=str(mistake)):
            agent.run_sync("memory://", session="s", message="hi")
    assert second.asked == 0


def test_a_summary_falls_back_too():
    def say(request: Request) -> str:
        if "old notes" not in request.messages[-1]["content"]:
            return "fine " * 10
        if request.model == "first":
            raise ModelUnavailable("down")
        return "notes"

    first, second = Ailing("first", say), Ailing("second", say)
    agent = Agent("guide", model=[first, second], compactor=Compactor(every=2), window=Window(keep_recent=2))

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            for n in range(6):
                assert (await agent.run(db, session="s", message=f"message {n}")).ok
            told = await db.history("s")
            summaries = {c.more["model"]["name"] for c in told if c.more.get("model", {}).get("use") == "summary"}
            assert summaries == {"second"}
            for runs in (None, agent):
                found = await replay(db, "s", agent=runs)
                assert found.identical, found

    asyncio.run(main())


def test_a_replay_finds_the_same_with_the_agent_and_without():
    first, second = Ailing("first", rain, ModelUnavailable("down")), Ailing("second", rain)
    first.params, second.params = {"seed": 1}, {"seed": 2}  # pyright: ignore[reportAttributeAccessIssue]
    agent = Agent("guide", model=[first, second], tools=[weather])

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            await agent.run(db, session="s", message="Rain?")
            first.ill = None
            await agent.run(db, session="s", message="And now?")
            for runs in (None, agent):
                found = await replay(db, "s", agent=runs)
                assert (found.what, found.turns) == ("", 4)
            other = Agent("guide", model=[first], tools=[weather])
            assert "second became first" in (await replay(db, "s", agent=other)).what

    asyncio.run(main())


def test_a_recording_of_a_test_has_who_could_not_answer(tmp_path: Path):
    first, second = Ailing("first", ill=ModelUnavailable("down")), Ailing("second")
    agent = Agent("guide", model=[first, second])
    for record in (True, False):
        with recorded(tmp_path / "r.json", record=record):
            done = agent.run_sync("memory://", session="s", message="hi")
        assert done.text == "fine"
        assert any("first could not answer (down)" in n for n in done.notes)
    assert (first.asked, second.asked) == (1, 1)
    assert len(json.loads((tmp_path / "r.json").read_text())["models"]) == 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ([], r"model=\[\] has no model in it"),
        (["gpt-4.1", 7], "model number 2 of 2: it is the name of a model, .*, not 7"),
        (["gpt-4.1", None], "model number 2 of 2: .*, not None"),
        (["gpt-4.1", ["gpt-4.1-mini"]], "model number 2 of 2: .*, not \\['gpt"),
        (["gpt-4.1", "gpt-4.1"], "model number 2 of 2: 'gpt-4.1' is in the list already"),
        ([FunctionModel, "gpt-4.1"], "model number 1 of 2: it is the name"),
        ([""], "model number 1 of 1: "),
        ({"gpt-4.1": 1}, "or a list of these, not {'gpt-4.1': 1}"),
    ],
)
def test_mistakes_in_the_list_are_named(model: Any, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(InvalidInput, match=said):
        Agent("a", model=model)


def test_names_in_a_list_share_where_they_are_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="model number 1 of 2: there is no key for openai"):
        Agent("a", model=["gpt-4.1", "gpt-4.1-mini"])
    scripted = FunctionModel(lambda _: Answer({"role": "assistant", "content": "x"}))
    agent = Agent("a", model=["one", scripted, "two"], base_url="http://127.0.0.1:9/v1", api_key="k")
    assert [m.name for m in agent.models] == ["one", "function", "two"]
    assert repr(agent.models[0]) == repr(agent.models[2]).replace("two", "one")
    with pytest.raises(InvalidInput, match=r"base_url=, api_key= goes with the name of a model"):
        Agent("a", model=[scripted], base_url="http://127.0.0.1:9/v1", api_key="k")
