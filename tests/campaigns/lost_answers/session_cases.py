"""What programs do to their sessions while answers get lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import perdure
from perdure.errors import ApprovalError, ApprovalNeeded, InDoubt, OutcomeUnknown
from tests.campaigns.lost_answers.scene import case

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.campaigns.lost_answers.scene import Act, Scene

    Play = Generator[Act, Any, None]

LARGE = "x" * 50_000


@case("first commit", single=True)
def _first_commit(x: Scene) -> Play:
    s = x.db.session(x.name)
    s.messages.append("one")
    point = yield s.commit
    x.expect(x.ids(), [point.id], "checkpoints")
    x.expect_messages("one")
    s.messages.append("two")
    s.commit()
    s.release()
    x.expect_messages("one", "two")


@case("commit", single=True)
def _commit(x: Scene) -> Play:
    s = x.begun()
    s.messages.append("one")
    point = yield s.commit
    x.expect_messages("before 0", "one")
    x.expect_steps(2)
    x.expect(x.direct.read(x.name).checkpoint.id, point.id, "the head")
    s.messages.append("two")
    s.commit()
    s.release()
    x.expect_messages("before 0", "one", "two")
    x.expect_intact()


@case("commit without a lease", single=True)
def _optimistic(x: Scene) -> Play:
    s = x.begun(lease=False)
    s.messages.append("one")
    yield s.commit
    x.expect_messages("before 0", "one")
    x.expect_steps(2)


@case("commit with a large value")
def _blob(x: Scene) -> Play:
    s = x.begun()
    # Another content each time: one that is there already would only be renewed.
    s.vars["photo"] = f"{x.n} {LARGE}"
    yield s.commit
    x.expect(x.direct.read(x.name).vars["photo"], f"{x.n} {LARGE}", "the large value")
    x.expect_steps(2)
    s.release()


@case("update", single=True, named=False)
def _update(x: Scene) -> Play:
    x.begun().release()

    def update() -> None:
        # No handle remembers what was tried: whoever was told that the outcome is unknown looks the id up, and
        # what has not landed by then is done anew, as another commit.
        x.expect(isinstance(x.said, OutcomeUnknown) and not x.said.id, False, "an unknown outcome without an id")
        if not x.landed:
            x.db.update(x.name, lambda s: s.messages.append("one"))

    yield update
    x.expect_messages("before 0", "one")
    x.expect_steps(2)


@case("open and release")
def _open(x: Scene) -> Play:
    x.begun().release()

    def both() -> str:
        with x.db.session(x.name) as s:
            return s.opened

    opened = yield both
    x.expect(opened, "resumed", "how it was opened")
    if x.said is None:
        x.expect_free()
    x.expect_messages("before 0")


@case("renew a lease")
def _renew(x: Scene) -> Play:
    s = x.begun()
    yield x.db.caretaker.heartbeat.renew
    s.messages.append("one")
    s.commit()
    s.release()
    x.expect_messages("before 0", "one")


@case("call that must not happen twice")
def _call_once(x: Scene) -> Play:
    s = x.begun()
    tool = x.tool()
    x.entered.clear()
    result = yield lambda: s.call(tool)
    x.expect(result, "receipt", "the outcome")
    x.expect(x.entered, x.entered[:1], "entries into the tool")
    # When it was not known whether its start had landed, it is started once more; its outcome stands once.
    kinds = [point.kind for point in x.direct.history(x.name)]
    x.expect([kind for kind in kinds if kind == "done"], ["done"], "outcomes")
    s.release()
    with x.direct.session(x.name) as again:
        x.expect(again.call(tool), "receipt", "the outcome recorded")
    x.expect(len(x.entered), 1, "entries into the tool")


@case("call that may be repeated under its id")
def _call_keyed(x: Scene) -> Play:
    s = x.begun()
    tool = x.tool(if_unsure="retry", key_valid_for="24h")
    x.entered.clear()
    result = yield lambda: s.call(tool)
    x.expect(result, "receipt", "the outcome")
    x.expect(sorted(set(x.entered)), x.entered[:1], "ids of the effect")
    s.release()


@case("run")
def _run(x: Scene) -> Play:
    s = x.begun()
    tool = x.tool()
    x.entered.clear()

    def job(s: Any) -> str:
        s.messages.append("begun")
        s.commit()
        got = s.call(tool)
        s.messages.append("ended")
        s.commit()
        return got

    def run() -> str:
        try:
            return s.run("job", job)
        except InDoubt as doubt:
            # Its start may have landed while nobody heard of it; whoever looks sees that nothing happened.
            if x.said is None or x.entered:
                raise
            s.resolve(doubt.effect, retry=True, by="ana")
            return s.run("job", job)

    result = yield run
    x.expect(result, "receipt", "the result")
    x.expect(x.entered, x.entered[:1], "entries into the tool")
    x.expect_messages("before 0", "begun", "ended")
    s.release()
    x.expect_intact()


# -- branches --------------------------------------------------------------------------------------


@case("fork", single=True)
def _fork(x: Scene) -> Play:
    s = x.begun(steps=2)
    yield lambda: s.fork("side", at=1)
    x.expect_steps(3)
    x.expect(x.direct.read(x.name, branch="side").plain()["messages"], ["before 0"], "the branch")
    s.messages.append("one")
    s.commit()
    s.release()
    x.expect_messages("before 0", "before 1", "one")


@case("tag", single=True)
def _tag(x: Scene) -> Play:
    s = x.begun()
    yield lambda: s.tag("good")
    x.expect_steps(2)
    x.expect(x.messages(at="good"), ["before 0"], "the tag")
    s.release()


@case("rewind", single=True)
def _rewind(x: Scene) -> Play:
    s = x.begun(steps=3)
    yield lambda: s.rewind(1)
    x.expect_steps(4)
    x.expect_messages("before 0")
    s.messages.append("one")
    s.commit()
    s.release()
    x.expect_messages("before 0", "one")


@case("merge", single=True)
def _merge(x: Scene) -> Play:
    s = x.begun()
    s.fork("side")
    with x.db.session(f"{x.name}-other") as other:
        other.commit()
    s.switch("side")
    s.vars["side"] = 1
    s.commit()
    s.switch("main")
    yield lambda: s.merge("side")
    x.expect(x.direct.read(x.name).vars["side"], 1, "what the branch changed")
    kinds = [point.kind for point in x.direct.history(x.name) if point.kind == "merge"]
    x.expect(kinds, ["merge"], "merges")
    s.release()


@case("close", single=True)
def _close(x: Scene) -> Play:
    s = x.begun()
    s.messages.append("last")
    yield s.close
    s.release()
    x.expect_messages("before 0", "last")
    x.expect_steps(2)
    x.expect(x.truth.look(x.name).status, "closed", "the status")


# -- the inbox -------------------------------------------------------------------------------------


@case("post", single=True, named=False)
def _post(x: Scene) -> Play:
    yield lambda: x.db.post(x.name, "hello", key="k")
    x.expect([e.key for e in x.truth.inbox(x.name)], ["k"], "the inbox")
    with x.direct.session(x.name) as s:
        x.expect([m.body for m in s.take()], ["hello"], "what is taken")
        s.commit()
    x.expect(x.truth.inbox(x.name), [], "the inbox")
    x.expect(x.direct.post(x.name, "hello", key="k"), False, "posting it again")


@case("answer", single=True)
def _answer(x: Scene) -> Play:
    s = x.begun()
    x.direct.post(x.name, "hello", key="k")
    for message in s.take():
        s.messages.append(message.body)
    yield s.commit
    x.expect_messages("before 0", "hello")
    x.expect(x.truth.inbox(x.name), [], "the inbox")
    x.expect(s.take(), [], "what is left to take")
    s.release()


@case("approve", named=False)
def _approve(x: Scene) -> Play:
    s = x.begun()
    tool = x.tool(approve=True)
    x.entered.clear()
    with suppress(ApprovalNeeded):
        s.call(tool)
    (asked,) = s.approvals()

    def agree() -> None:
        try:
            x.db.approve(x.name, asked.id, by="ana")
        except ApprovalError:
            # Said by the retry of one whose fate was unknown: it had landed.
            if x.said is None:
                raise

    yield agree
    x.expect(s.call(tool), "receipt", "the outcome")
    x.expect(len(x.entered), 1, "entries into the tool")
    s.release()


# -- many at once ----------------------------------------------------------------------------------


@case("five sessions at once")
def _gather(x: Scene) -> Play:
    names = [f"{x.name}-{i}" for i in range(5)]

    async def all_of_them() -> None:
        async with perdure.open_async(x.proxied, clock=x.clock, **x.options) as db:

            async def one(name: str) -> None:
                async with db.session(name) as s:
                    if "one" not in s.messages.plain():
                        s.messages.append("one")
                        await s.commit()

            failed = [e for e in await asyncio.gather(*map(one, names), return_exceptions=True) if e is not None]
        if failed:
            raise failed[0]

    yield lambda: asyncio.run(all_of_them())
    for name in names:
        x.expect_messages("one", name=name)
        x.expect_steps(1, name)
