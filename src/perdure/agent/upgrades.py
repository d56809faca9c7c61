"""Upgrades: an agent that has changed meets a session that its older self left, perhaps with calls still open.

Unchanged goes on; what harms no open call goes on with a note; open calls of a tool with a new version go through the
migrations that are declared for it; whatever is left over is told, and nothing is touched.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What a session records of an agent is any JSON: its types are looked at, not declared.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.requests import note_setup
from perdure.errors import InvalidInput
from perdure.model import Kind
from perdure.session.actions import Action, Do
from perdure.session.calls.identity import identify
from perdure.session.calls.records import OPEN, UNSETTLED
from perdure.session.calls.schemas import note_result_schema
from perdure.session.tools import migrations
from perdure.state.document import plain
from perdure.state.values import same
from perdure.system import faults
from perdure.system.commands import door
from perdure.system.wording import call_words

if TYPE_CHECKING:
    from perdure.agent.agent import Agent
    from perdure.agent.loop import Loop


class Way(NamedTuple):
    """How a call of a tool as it was becomes one of a tool that the agent has."""

    tool: str
    version: str
    steps: list[tuple[str, str, str]]
    """Migrations to go through: of which tool, from which version to which."""


class Moved(NamedTuple):
    """What becomes of a recorded call."""

    slot: str
    way: Way
    args: dict[str, Any] | None
    """New arguments of an open call; None for one that has its outcome."""
    result: Any = None


class Plan(NamedTuple):
    """What an upgrade comes to."""

    notes: list[str]
    moved: list[Moved]
    problems: list[str]


async def upgrade(loop: Loop) -> str:
    """Bring a session to the agent that runs it now; the reasons when that cannot be, and then nothing is done."""
    old = plain(loop.book.get("setup"))
    if old is None:
        return ""
    # Whichever of its models was asked last: that another one is asked now is no change of the agent.
    new = loop.setup(loop.agent.named(old["model"]))
    if old == new:
        return ""
    if why := _too_different(loop.agent, old):
        return why
    for record in loop.calls.open_records():
        # Turned down is turned down: that needs no tool.
        await loop.s.driver.drive(loop.s.requests.settle_refusal(record))
    plan = compare(loop, old, new)
    if plan.problems:
        loop.notes.extend(plan.notes)
        loop.notes.append(await _ways_out(loop))
        return "; ".join(plan.problems)
    for said in plan.notes:
        loop.note(said)
    if plan.moved:
        await _migrate(loop, plan, new)
    return ""


def compare(loop: Loop, old: dict[str, Any], new: dict[str, Any]) -> Plan:
    """What is different, and what that means for the calls of the last answer."""
    made = loop.declared
    plan = Plan(_differences(old, new, told=made.instruct is None, fixed=made.choose is None), [], [])
    effects = loop.s.book.get("effects", {})
    for entry in plain(loop.book["calls"]):
        record = plain(effects.get(entry.get("slot", "")))
        if record is not None:
            _look_at(loop, entry["slot"], record, old["versions"], plan)
    return plan


def _look_at(loop: Loop, slot: str, record: dict[str, Any], versions: dict[str, str], plan: Plan) -> None:
    name, is_open = record["tool"], record["status"] in OPEN
    what = f"{name} (effect {record['id']}) is {'waiting' if record['status'] == 'planned' else record['status']}"
    to, before = name, versions.get(name, "")
    steps: list[tuple[str, str, str]] = []
    while to not in loop.agent.tools and to not in loop.own:
        at, known_as = migrations.renamings.get(to, ("", ""))
        if not known_as or (more := migrations.steps_of(to, before, at)) is None:
            if is_open:
                plan.problems.append(f"{what}, and the agent has no tool {to} any more")
            return
        steps += more
        to, before = known_as, at
    now = loop.tool(to).version
    if (more := migrations.steps_of(to, before or now, now)) is None:
        if is_open:
            plan.problems.append(f"{what} by version {before} of the tool, and no migration leads to version {now}")
        return
    way = Way(to, now, steps + more)
    try:
        moved = _moved(slot, record, way)
        if moved.args is not None:
            loop.spec(to).checked(plain(moved.args))
    except Exception as e:
        # What a declared migration raises is told, not thrown: the session is as it was.
        words = str(e) if isinstance(e, InvalidInput) else f"a migration raised {type(e).__name__}: {e}"
        plan.problems.append(f"{what}: {words}")
        return
    if way.steps:
        said = f"the call {record['id']} of {name} was brought from version {way.steps[0][1]} to {now}"
        plan.notes.append(said + (f" of {to}" if to != name else ""))
        plan.moved.append(moved)


def _moved(slot: str, record: dict[str, Any], way: Way) -> Moved:
    if record["status"] in OPEN:
        return Moved(slot, way, migrations.migrated(record["args"], way.steps))
    result = record.get("result")
    for step in way.steps:
        if record["status"] == "done" and (change := migrations.of_results.get(step)) is not None:
            answer = change(result)
            result = result if answer is None else answer
    return Moved(slot, way, None, result)


def _too_different(agent: Agent, old: dict[str, Any]) -> str:
    """Why a program does not go on with what another version of it has left; "" when it does."""
    known, left = agent.goes_on_from, old["version"]
    if known is None or old["agent"] != agent.name or left == agent.version or left in known:
        return ""
    which = ", ".join(sorted(known)) or "no other"
    return (
        f"it was left by version {left!r:.80} of agent {agent.name!r:.80}, and version {agent.version!r:.80} goes on "
        f"from {which:.200}: run it with that version, or have goes_on_from name it"
    )


async def _ways_out(loop: Loop) -> str:
    """What can be done about calls that this program cannot go on with."""
    s = loop.s
    ways = ["run it with the program that it was left by until these calls are settled", "declare @tool_migration"]
    records = loop.calls.open_records()
    asked = [r for record in records if (r := s.requests.of_call(record)) is not None and r["status"] == "pending"]
    decided = [await s.driver.drive(s.inbox.waiting(f"decision:{request['id']}")) for request in asked]
    if left := [request for request, said in zip(asked, decided, strict=True) if not said]:
        rejects = Action(Do.APPROVE, s.id, left[0]["id"], s.branch).others[-1]
        ways.append(_typed("reject the approval", left[0]["id"], rejects))
    if begun := [record for record in records if record["status"] in ("started", "in_doubt", "unknown")]:
        resolves = Action(Do.RESOLVE, s.id, begun[0]["id"], s.branch)
        commands = " or ".join((resolves.others[-1], resolves.command))
        ways.append(_typed("resolve the effect with abort or done", begun[0]["id"], commands))
    return ", or ".join(ways)


def _typed(way: str, id: str, command: str) -> str:
    """A way out with what to type, for whoever types; for others with what it is about."""
    return f"{way} ({command if door() == 'shell' else id})"


async def _migrate(loop: Loop, plan: Plan, new: dict[str, Any]) -> None:
    """Carry open calls over, as a checkpoint of its own, before any of them is made."""
    s = loop.s
    for moved in plan.moved:
        record = s.book["effects"][moved.slot]
        if moved.args is None:
            if record["status"] == "done":
                record["result"] = moved.result
            continue
        before = plain(record)
        identify(record, loop.tool(moved.way.tool), moved.args)
        note_result_schema(s.journal.book, loop.tool(moved.way.tool), record)
        request = s.book.get("approvals", {}).get(record.get("approval", ""))
        if request is not None and request["status"] in ("pending", "approved"):
            await s.driver.drive(s.requests.outdate(request))
            # Still names that somebody must agree, and no request that anybody could have agreed to.
            record["approval"] = ""
        begun = before["attempt"] and before["status"] != "waiting" and "read" not in before
        reported = await s.driver.drive(s.inbox.waiting(f"outcome:{before['id']}"))
        if begun and not reported and not same(before["args"], moved.args):
            now = call_words(moved.way.tool, plain(moved.args))
            s.effect_records.make_anew(record, before, f"{_stood(before)}, and by a migration it would be {now} now")
    note_setup(loop.book, new)
    faults.point("agent.before_upgrade")
    x = {"note": "; ".join(plan.notes)[:500]}
    await s.driver.drive(s.journal.write(Kind.MIGRATED, x=x, status=s.effect_records.session_status()))
    faults.point("agent.after_upgrade")


def _stood(record: dict[str, Any]) -> str:
    """What is known of a call that was begun before its arguments were migrated."""
    call = f"{call_words(record['tool'], record['args'])} (effect {record['id']})"
    if record["status"] == "planned" and UNSETTLED not in record:
        return f"{call} was to be made again"
    agreed = " agreed to and" if "approval" in record else ""
    return f"{call} was{agreed} started, and nobody knows whether it happened"


def _differences(old: dict[str, Any], new: dict[str, Any], *, told: bool, fixed: bool) -> list[str]:
    """What has changed about the agent, a line each; not what functions give anew each time."""
    notes: list[str] = []
    for field, said in (("agent", "agent"), ("version", "agent version"), ("model", "model")):
        if old[field] != new[field]:
            notes.append(f"the {said} was {old[field]!r} and is {new[field]!r}")
    if old.get("deps", "") and new.get("deps", "") and old["deps"] != new["deps"]:
        notes.append(f"the dependencies were {old['deps']!r} and are {new['deps']!r}")
    if told and old["instructions"] != new["instructions"]:
        notes.append("the instructions have changed")
    params = sorted(
        k for k in {**old["params"], **new["params"]} if not same(old["params"].get(k), new["params"].get(k))
    )
    if params:
        notes.append(f"the model's parameters have changed: {', '.join(params)}")
    before, now = ({t["name"]: t for t in setup["tools"]} for setup in (old, new))
    notes += [f"the tool {name} is new" for name in now if fixed and name not in before]
    notes += [f"the tool {name} is gone" for name in before if fixed and name not in now]
    for name in before:
        if name in now:
            notes += _tool_differences(name, before[name], now[name], old["versions"], new["versions"])
    return notes


def _tool_differences(
    name: str, before: dict[str, Any], now: dict[str, Any], old: dict[str, str], new: dict[str, str]
) -> list[str]:
    if old.get(name) != new.get(name):
        return [f"the tool {name} was version {old.get(name)} and is version {new.get(name)}"]
    if same(before["parameters"], now["parameters"]):
        return [f"the tool {name} is described in other words"] if before != now else []
    had, has = (set(t["parameters"].get("properties", {})) for t in (before, now))
    needs = set(now["parameters"].get("required", ()))
    added, gone = sorted(has - had), sorted(had - has)
    said = [f"{p} is new{' and required' if p in needs else ''}" for p in added] + [f"{p} is gone" for p in gone]
    return [f"the parameters of the tool {name} have changed" + (f": {', '.join(said)}" if said else "")]
