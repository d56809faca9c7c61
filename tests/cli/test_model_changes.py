"""A provider that answers with another version of a model: told on resume and in comparisons."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import perdure
from perdure import Agent, Answer, FunctionModel
from perdure.agent.branching_off import branch_off, run_on
from perdure.agent.model_versions import MOST
from perdure.agent.replay.replay import replay
from tests.server.asking import asking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


class Provider(FunctionModel):
    """A model behind whose name something changes."""

    version, fingerprint = "m-1", "fp_a"
    provider = "acme"

    def __init__(self, name: str = "m") -> None:
        super().__init__(self._said, name=name)

    def _said(self, _: Any) -> Answer:
        message = {"role": "assistant", "content": "fine"}
        return Answer(message, model=self.version, fingerprint=self.fingerprint)


def test_what_has_changed_is_told_by_who_goes_on_and_by_each_comparison(tmp_path: Path, command: Command) -> None:
    url, model = f"sqlite:///{tmp_path}/agents.db", Provider()
    agent = Agent("guide", model=model)
    notes: list[tuple[str, ...]] = []
    for version, fingerprint in (("m-1", "fp_a"), ("m-1", "fp_a"), ("m-2", "fp_b"), ("m-2", ""), ("m-2", "fp_b")):
        model.version, model.fingerprint = version, fingerprint
        notes.append(agent.run_sync(url, session="s", message="hi").notes)
    said = (
        "the provider's version of acme/m was 'm-1' and is 'm-2'; "
        "the provider's fingerprint of acme/m was 'fp_a' and is 'fp_b'"
    )
    # A server that says nothing of its system says nothing new.
    assert notes == [(), (), (said,), (), ()]
    with perdure.open(url) as db:
        assert [c.more.get("note", "") for c in reversed(db.history("s"))] == ["", "", said, "", ""]
    found = asyncio.run(_replayed(url, agent))
    assert found.identical
    assert [str(v).partition(": ")[::2] for v in found.versions] == [("step 3", one) for one in said.split("; ")]

    where = ["--store", url]
    shown = command("replay", "s", *where).out
    assert "identical: 5 answers" in shown
    assert "step 3: the provider's version of acme/m was 'm-1' and is 'm-2'" in shown
    assert command("replay", "s", *where, "--json").json["model_changes"][0] == {
        "model": "acme/m", "what": "version", "before": "m-1", "after": "m-2", "step": 3,
    }  # fmt: skip
    assert "provider's fingerprint of acme/m was 'fp_a' and is 'fp_b'" in command("diff", "s@1", "s@5", *where).out
    assert "provider's" not in command("diff", "s@1", "s@2", *where).out
    assert len(command("diff", "s@2", "s@3", *where, "--json").json["model_changes"]) == 2


async def _replayed(url: str, agent: Agent) -> Any:
    async with perdure.open_async(url) as db:
        return await replay(db, "s", agent=agent)


def test_a_provider_that_answers_from_many_systems_is_told_of_once_in_a_run() -> None:
    model = Provider()

    def until(_: str) -> bool:
        model.fingerprint = f"fp_{model.asked}"
        return model.asked >= 5

    done = Agent("guide", model=model, until=until).run_sync("memory://", session="s", message="hi")
    assert len(done.notes) == 1


def test_a_session_keeps_only_so_many() -> None:
    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            for n in range(MOST + 2):
                await Agent("guide", model=Provider(f"m{n}")).run(db, session="s", message="hi")
            kept = (await db.read("s")).book["agent"]["versions"]
            assert (len(kept), "acme/m1" in kept, f"acme/m{MOST + 1}" in kept) == (MOST, False, True)

    asyncio.run(main())


def test_the_console_says_it_of_two_branches(tmp_path: Path) -> None:
    with asking(tmp_path) as console:

        async def work() -> None:
            async with perdure.open_async(console.db.url) as db:
                model = Provider()
                agent = Agent("guide", model=model)
                await agent.run(db, session="s", message="hi")
                await branch_off(db, "s", "later", at=1, before=True)
                model.version = "m-2<b>"
                await run_on(db, agent, "s", "later")

        asyncio.run(work())
        page = console.http.get("/compare?id=s&a=main&b=later", headers={"Accept": "text/html"}).text
        assert "the provider&#39;s version of acme/m was &#39;m-1&#39; and is &#39;m-2&lt;b&gt;&#39;." in page
        page = console.http.get("/compare?id=s&a=main&b=main", headers={"Accept": "text/html"}).text
        assert "provider&#39;s" not in page
