"""What agents do to their sessions: commit, call, run, branch, answer. Each may be interrupted anywhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.errors import Conflict, DoneElsewhere, NotFound
from perdure.opening import open_async
from tests.campaigns.crash.journal import fingerprint
from tests.campaigns.crash.planning import DOING, MAKING, one_of, plan
from tests.campaigns.crash.worker import NEW
from tests.campaigns.crash.world import FOUND_OUT, KEYED, ONCE, READS, job_call, receipt

if TYPE_CHECKING:
    import random

    from perdure.session.handle import Session
    from tests.campaigns.crash.planning import Plan
    from tests.campaigns.crash.worker import Worker

TOOLS = (*ONCE, *KEYED, *FOUND_OUT, *READS)


@plan("commit", one_of("talk", 3))
def _commit(w: Worker, p: Plan, again: bool) -> None:
    with w.db.session(p["session"], owner="ana") as s:
        if not (again and w.has(s, p["n"])):
            w.edit(s, p["n"])
            s.commit()
        w.saw(s)


def _make_call(w: Worker, rng: random.Random, n: int) -> Plan:
    return {"session": f"calls-{rng.randrange(2)}", "tool": rng.choice(TOOLS)}


@plan("call", _make_call)
def _call(w: Worker, p: Plan, again: bool) -> None:
    with w.db.session(p["session"]) as s:
        result = w.call(s, p["tool"], p["n"])
        w.saw(s)
    w.journal.note("called", n=p["n"], result=result)


for _name in TOOLS:
    DOING[f"call:{_name}"] = _call
    MAKING[f"call:{_name}"] = lambda w, rng, n, tool=_name: {"session": f"calls-{n % 2}", "tool": tool}


def _make_recall(w: Worker, rng: random.Random, n: int) -> Plan:
    known = [q for q in w.history.plans.values() if q["op"].startswith("call") and q["n"] in w.history.results]
    return {"session": "", "of": rng.choice(known)["n"] if known else 0}


@plan("recall", _make_recall)
def _recall(w: Worker, p: Plan, again: bool) -> None:
    """A call that was answered gives the same answer, and does not happen again."""
    if not p["of"]:
        return
    was = w.history.plans[p["of"]]
    before = w.history.entered[was["tool"], was["n"]]
    with w.db.session(was["session"]) as s:
        result = w.call(s, was["tool"], was["n"])
    if result != w.history.results[was["n"]]:
        what = f"call {was['n']} of {was['tool']} answered {w.history.results[was['n']]}, and now {result}"
        w.journal.note("problem", kind="lost", what=what)
    if w.history.entered[was["tool"], was["n"]] != before:
        what = f"call {was['n']} of {was['tool']} was answered, and made again"
        w.journal.note("problem", kind="duplicated", what=what)


@plan("run", one_of("runs", 2))
def _run(w: Worker, p: Plan, again: bool) -> None:
    n = p["n"]
    with w.db.session(p["session"]) as s:
        result = w.run(s, n)
        w.saw(s)
    expected = {"n": n, "first": receipt("retry", job_call(n, 1)), "second": receipt("reconcile", job_call(n, 2))}
    if {**expected, "third": result["third"]} != result:
        w.journal.note("problem", kind="lost", what=f"job {n} ended with {result}")


# -- branches --------------------------------------------------------------------------------------


def _tree(w: Worker, p: Plan) -> Session:
    """A session with a first checkpoint and one call that no branch may make again."""
    s = w.db.session(p["session"])
    try:
        if s.head is None:
            s.vars["seed"] = 0
            s.commit()
    except BaseException:
        s.release()
        raise
    return s


def _call_once(w: Worker, s: Session) -> None:
    """The same call on every branch: made once in all, elsewhere its outcome or a refusal."""
    number = int(s.id.rpartition("-")[2])
    try:
        w.call(s, ("ask", "approved")[number], 1_000_000 + number, give_up=False)
    except DoneElsewhere:
        return


def _make_fork(w: Worker, rng: random.Random, n: int) -> Plan:
    session = f"tree-{rng.randrange(2)}"
    try:
        step = w.db.read(session).step
    except NotFound:
        step = 0
    return {"session": session, "at": rng.randint(1, step) if step and rng.random() < 0.5 else None}


@plan("fork", _make_fork)
def _fork(w: Worker, p: Plan, again: bool) -> None:
    name = f"b{p['n']}"
    with _tree(w, p) as s:
        _call_once(w, s)
        try:
            s.fork(name, at=p["at"])
        except Conflict:
            if not again:
                raise
    with w.db.session(p["session"], branch=name) as s:
        if not w.has(s, p["n"]):
            w.edit(s, p["n"])
            s.commit()
        w.saw(s)
        _call_once(w, s)


@plan("tag", one_of("tree", 2))
def _tag(w: Worker, p: Plan, again: bool) -> None:
    with _tree(w, p) as s:
        now = fingerprint(s.state.plain())
        try:
            s.tag(f"t{p['n']}")
        except Conflict:
            if not again:
                raise
        found = fingerprint(w.db.read(p["session"], at=f"t{p['n']}").plain())
        if found != now:
            w.journal.note("problem", kind="lost", what=f"tag t{p['n']} of {p['session']} shows another state")


def _make_rewind(w: Worker, rng: random.Random, n: int) -> Plan:
    session = f"tree-{rng.randrange(2)}"
    try:
        head = w.db.read(session).checkpoint
    except NotFound:
        return {"session": session, "tip": "", "to": 1}
    return {"session": session, "tip": head.id, "to": rng.randint(1, head.step)}


@plan("rewind", _make_rewind)
def _rewind(w: Worker, p: Plan, again: bool) -> None:
    with _tree(w, p) as s:
        assert s.head is not None
        if p["tip"] in ("", s.head.id):
            s.rewind(p["to"])
        w.saw(s)
        if not w.has(s, p["n"]):
            w.edit(s, p["n"])
            s.commit()
        w.saw(s)
        _call_once(w, s)


@plan("merge", one_of("merge", 1))
def _merge(w: Worker, p: Plan, again: bool) -> None:
    n, name = p["n"], f"m{p['n']}"
    with _tree(w, p) as s:
        if w.has(s, n):
            return
        try:
            s.fork(name)
        except Conflict:
            if not again:
                raise
    with w.db.session(p["session"], branch=name) as s:
        if not w.has(s, n):
            w.edit(s, n)
            s.commit()
    with w.db.session(p["session"]) as s:
        s.merge(name, prefer="theirs")
        w.saw(s)


# -- the inbox -------------------------------------------------------------------------------------


def _make_post(w: Worker, rng: random.Random, n: int) -> Plan:
    return {"session": f"{rng.choice(('inbox', 'runs'))}-{rng.randrange(2)}"}


@plan("post", _make_post)
def _post(w: Worker, p: Plan, again: bool) -> None:
    w.db.post(p["session"], {"n": p["n"]}, key=f"k{p['n']}")


@plan("answer", one_of("inbox", 2))
def _answer(w: Worker, p: Plan, again: bool) -> None:
    w.db.post(p["session"], {"n": p["n"]}, key=f"k{p['n']}")
    with w.db.session(p["session"]) as s:
        for message in s.take():
            s.messages.append({"answers": message.key})
        if s.changed:
            s.commit()
            w.saw(s)


@plan("wake", one_of("woken", 2))
def _wake(w: Worker, p: Plan, again: bool) -> None:
    """A session is woken at a time that has come already: it is told so, once."""
    w.db.wake(p["session"], at=1_000_000 + p["n"], message={"n": p["n"]}, key=f"w{p['n']}")
    with w.db.session(p["session"]) as s:
        for message in s.take():
            s.messages.append({"n": message.body["n"], "part": 0})
        if s.changed:
            s.commit()
            w.saw(s)


# -- many at once ----------------------------------------------------------------------------------


@plan("gather", lambda w, rng, n: {"session": "", "width": rng.randint(2, 5)})
def _gather(w: Worker, p: Plan, again: bool) -> None:
    """Several sessions commit at the same moment: one batch, one sync, as many answers."""
    asyncio.run(_gather_all(w, p, again))


async def _gather_all(w: Worker, p: Plan, again: bool) -> None:
    async with open_async(w.url, schema=NEW, maintain=False, **w.options) as db:
        db.driver.writer.store = w.watch(db)

        async def one(i: int) -> None:
            async with db.session(f"many-{i}") as s:
                handle: Any = s
                if not (again and w.has(handle, p["n"], part=i)):
                    w.edit(handle, p["n"], part=i)
                    await s.commit()
                w.saw(handle)

        async with asyncio.TaskGroup() as group:
            for i in range(p["width"]):
                group.create_task(one(i))
