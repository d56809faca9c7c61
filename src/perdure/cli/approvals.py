"""``perdure approve``, ``reject``, ``answer``, ``resolve``, ``cancel``, ``post``, ``outcome`` and ``wake``: what people
say to sessions about approvals, calls in doubt and anything else."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from perdure.agent.said_once import answer_of, same_unanswered
from perdure.cli.options import Again, AsJson, BlobsAt, By, DryRun, Reason, Session, Store, Yes
from perdure.cli.output import Out, answered, print_json, print_raised, print_traceback, tell
from perdure.cli.session_at import NOBODY_DECIDED, in_words, known_matters, open_matters, open_place, ways_out
from perdure.cli.session_selection import Failed, Selection, act, each, pick, sure
from perdure.cli.state_edits import parse_json
from perdure.cli.terminal_text import below, call_in_full, cut, safe
from perdure.cli.which_database import open_existing, open_existing_async
from perdure.errors import InvalidInput, NotFound
from perdure.fleet.status import settle, settle_all, to_resolve, to_stop
from perdure.fleet.why.answer import ACT
from perdure.fleet.why.reading import why
from perdure.history.expiry import ended, expired, living
from perdure.history.hydrate import known
from perdure.model import MAIN
from perdure.session.actions import Action, Do
from perdure.session.calls.decisions import undecided
from perdure.session.calls.records import exception_of
from perdure.shapes.approvals import Waiting, decided, waiting
from perdure.shapes.approvals import effect as effect_shape
from perdure.shapes.basics import Page
from perdure.shapes.work import Posted, Run, run
from perdure.system.commands import quoted, typed
from perdure.system.names import check_name, check_session
from perdure.system.times import ago
from perdure.system.wording import count, json_or_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from perdure.aio import AsyncDatabase
    from perdure.cli.session_at import Opened
    from perdure.database import Database
    from perdure.model import SessionRow
    from perdure.session.handover import Handover


Approval = Annotated[
    str | None, typer.Argument(metavar="[APPROVAL]", help="Which one; not needed where only one waits.")
]
Question = Annotated[
    str | None, typer.Argument(metavar="[APPROVAL]", help="Which one; without it those that wait are listed.")
]
Listed = Annotated[bool, typer.Option("--list", help="Only list what waits, and decide nothing.")]
Branch = Annotated[str, typer.Option(metavar="NAME", help="The branch that is looked at.")]


def approve(
    session: Session,
    approval: Approval = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Agree to other arguments: all of them, as one object; what does not fit is refused."
        ),
    ] = None,
    listed: Listed = False,
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Agree to a call that waits for it, once, exactly as it was asked; where several wait, they are listed."""
    args: Any = None if edit is None else parse_json(edit, "--edit")
    if args is not None and not isinstance(args, dict):
        raise InvalidInput("--edit takes the call's arguments as an object, such as '{\"amount\": 60}'")
    said = cast("dict[str, Any] | None", args)

    def agree(db: Database, id: str) -> Handover:
        return db.approve(session, id, by=by or user_name(), reason=reason, args=said)

    _decide(session, approval, store, blobs, branch, as_json, "approved", agree, listed=listed)


def reject(
    session: Session,
    approval: Approval = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    listed: Listed = False,
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Refuse a call that waits for agreement, or the answer to a question; where several wait, they are listed."""

    def refuse(db: Database, id: str) -> Handover:
        return db.reject(session, id, by=by or user_name(), reason=reason)

    _decide(session, approval, store, blobs, branch, as_json, "rejected", refuse, listed=listed)


def answer(
    session: Session,
    approval: Question = None,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="JSON; anything else is text.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    branch: Branch = MAIN,
    as_json: AsJson = False,
) -> None:
    """Answer a question that a tool has put."""

    def say(db: Database, id: str) -> Handover:
        if value is None:
            raise InvalidInput(f"an answer is missing: {typed(f'answer {quoted(session)} {quoted(id)} VALUE')}")
        return db.answer(session, id, json_or_text(value), by=by or user_name(), reason=reason)

    _decide(session, approval, store, blobs, branch, as_json, "answered", say, listed=approval is None)


def _decide(
    session: str, approval: str | None, store: str | None, blobs: str | None, branch: str, as_json: bool,
    decision: Literal["approved", "rejected", "answered"], how: Callable[[Database, str], Handover], *, listed: bool,
) -> None:  # fmt: skip
    """Decide on one request and tell who goes on with its session; where it is not plain which, those that wait are."""
    with open_existing(store, blobs) as db:
        if listed:
            list_open(db, session, branch, as_json)
            return
        if approval is None:
            approval = _only_one(db, session, branch, as_json, decision)
        handed = how(db, approval)
    shape = decided(session, approval, decision, handed)
    tell(as_json, shape, f"{cut(approval, 200)}: {decision}. {cut(handed.words, 1000)}")


def _only_one(db: Database, session: str, branch: str, as_json: bool, decision: str) -> str:
    """The one request that can be meant; where there is none, or several, they are listed and nothing is decided."""
    opened = open_place(db, session, branch)
    matters = open_matters(db, opened)
    meant = [a["id"] for a in matters.approvals if decision != "approved" or not a.get("question")]
    if len(meant) == 1:
        if not as_json:
            # Nobody has named it: what is decided on is seen here, if it was not before.
            _print_call(Out(), next(a for a in matters.approvals if a["id"] == meant[0]), "", "")
        return meant[0]
    if not meant and not as_json and any(matters):
        Out().line(f"nothing in {cut(session, 200)} waits for {'approval' if decision == 'approved' else 'a decision'}")
    list_open(db, session, branch, as_json)
    if not meant:
        raise typer.Exit(1)
    raise InvalidInput(f"{len(meant)} wait, and nothing was decided: say which")


def cancel(
    sessions: Annotated[list[str] | None, typer.Argument(metavar="[SESSION]...", help="Which; or use options.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    by: By = None,
    reason: Reason = "",
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="All sessions of this agent.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="All sessions of this owner.")] = None,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="All sessions with this status.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop agents: they end as soon as they notice, and go on only with a new message."""
    with open_existing(store, blobs) as db:
        who = check_name(by or user_name(), "name", empty=True)
        failed: list[Failed] = []

        def stop(batch: list[SessionRow]) -> int:
            return each(batch, lambda session: db.cancel(session, by=who, reason=reason), failed)

        picked = pick(db, Selection(sessions, agent, owner, status), failed, options="--agent, --owner or --status")
        picked = to_stop(db, picked) if dry_run else picked
        act(picked, "cancel", stop, dry_run=dry_run, as_json=as_json, failed=failed)


def list_open(db: Database, session: str, branch: str, as_json: bool) -> None:
    """What waits for somebody in a session, with what to type."""
    opened = open_place(db, session, branch)
    if as_json:
        print_json(_waiting(db, opened, branch))
        return
    matters = open_matters(db, opened)
    out, now = Out(), db.kernel.clock.wall()
    for a in matters.approvals:
        _print_call(out, a, f"asks: {safe(a['question'])}" if a.get("question") else "waits for agreement", "yellow")
        for name in ("because", "facts", "schema"):
            if a.get(name) is not None and a[name] != "":
                out.lines(below(name, a[name]))
        out.line(f"  asked {ago(a['asked'], now)}, expires {ago(a['expires'], now)}", "dim")
        decide = Action(Do.ANSWER if a.get("question") else Do.APPROVE, opened.row.id, a["id"])
        for way in (decide.command, *decide.others):
            out.line(f"  {cut(way, 1000)}", "dim")
    for a, said in matters.decided:
        _print_call(out, a, f"was {cut(said, 300)}, and waits to be taken up", "dim")
    for a in matters.late:
        _print_call(out, a, NOBODY_DECIDED, "yellow")
        out.line(f"  {cut(typed(f'why {quoted(opened.row.id)}'), 1000)} says how it does", "dim")
    for e in matters.effects:
        told = matters.reported.get(e["id"], "")
        _print_call(out, e, in_words(e, opened, now, told), "dim" if told else "bold red")
        print_traceback(out, exception_of(e))
        for way in ways_out(e, opened, branch, told):
            out.line(f"  {cut(way, 1000)}", "dim")
    for one in matters.raised:
        print_raised(out, [one])
        if one.status in ("raised", "unknown") and not one.again:
            settle = Action(Do.RESOLVE, opened.row.id, one.effect, branch)
            for way in (settle.command, *settle.others):
                out.line(f"  {cut(way, 1000)}", "dim")
    if not any(matters[:4]):
        where = "" if branch == MAIN else f" on branch {cut(branch, 80)}"
        out.line(f"nothing in {cut(opened.row.id, 200)} waits for anybody{where}")
    for name, number in _elsewhere(db, opened, branch):
        waits = "1 more waits" if number == 1 else f"{number} more wait"
        out.line(f"{waits} on branch {cut(name, 80)}: see it with --branch {cut(quoted(name), 100)}", "yellow")


def _waiting(db: Database, opened: Opened, branch: str) -> Waiting:
    open_ = undecided(db.kernel, opened.row, opened.reading.book, opened.reading.checkpoint.line)
    return waiting(opened.reading, opened.row.id, branch, open_)


def _list_of_many(db: Database, chosen: Selection, branch: str, as_json: bool) -> None:
    """What waits for somebody in each of these sessions; not in those whose time is over."""
    rows = [row for row in pick(db, chosen, []) if branch in row.branches and not expired(db.kernel, row)]
    if as_json:
        found = [_waiting(db, open_place(db, f"{row.id}@", branch), branch) for row in rows]
        print_json(Page(items=found, next=None))
        return
    out = Out()
    for row in rows:
        out.line(f"session {cut(row.id, 200)}", "bold")
        list_open(db, f"{row.id}@", branch, as_json)
    if not rows:
        out.line("no call in doubt waits for anybody")


def _print_call(out: Out, record: dict[str, Any], said: str, style: str) -> None:
    """A call that somebody decides on, or a request for it, with all its arguments, and what is said of it."""
    call, more = call_in_full(record["tool"], record["args"])
    out.line(f"{record['id']}: {call} {said}".rstrip(), style)
    out.lines(more)


def _elsewhere(db: Database, opened: Opened, branch: str) -> list[tuple[str, int]]:
    """How much waits on other branches than the one that is looked at, each request once."""
    # A branch has the requests of the line it parted from: what is known here already is not its own.
    seen, found = known_matters(opened.reading), list[tuple[str, int]]()
    for name in opened.row.branches:
        if name == branch:
            continue
        there = open_place(db, f"{opened.row.id}@", name)
        number = sum(id not in seen for id in open_matters(db, there).ids)
        seen |= known_matters(there.reading)
        if number:
            found.append((name, number))
    return found


def user_name() -> str:
    """Who types this."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise InvalidInput("a decision records who took it: pass --by") from None


def resolve(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Which; or say it by options.")] = None,
    effect: Annotated[
        str | None,
        typer.Argument(
            metavar="[EFFECT]", help="Which call; without it those in doubt are listed, or all settled as is said."
        ),
    ] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    done: Annotated[str | None, typer.Option(metavar="JSON", help="It happened, and this was its result.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not happen: it may be made again.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="It did not happen, and is given up.")] = False,
    by: By = None,
    branch: Branch = MAIN,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="All in doubt of this agent.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="All in doubt of this owner.")] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="All with this status; in_doubt, if only others are said.")
    ] = None,
    listed: Listed = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what became of a call that was started and whose outcome nobody knows; or of all of them in many sessions."""
    verdicts = [name for name, said in (("done", done is not None), ("retry", retry), ("abort", abort)) if said]
    if listed and (verdicts or dry_run or yes or effect is not None):
        raise InvalidInput("--list only lists what waits: say what became of it without --list")
    if listed and session is None:
        with open_existing(store, blobs) as db:
            _list_of_many(db, Selection(None, agent, owner, status or "in_doubt"), branch, as_json)
        return
    if session is not None and effect is None and not (verdicts or dry_run or agent or owner or status):
        with open_existing(store, blobs) as db:
            list_open(db, session, branch, as_json)
        return
    if len(verdicts) > 1 or not (verdicts or dry_run):
        raise InvalidInput("say what became of it: exactly one of --done JSON, --retry and --abort")
    said: dict[str, Any] = {"by": by or user_name(), "verdict": verdicts[0] if verdicts else "retry"}
    if done is not None:
        said["result"] = _result(done)

    if session is not None and effect is not None:
        if dry_run or agent or owner or status:
            raise InvalidInput("one call is named: --dry-run and the options for many sessions do not go with it")
        with _awaited(store, blobs) as (db, wait):
            record, handed = wait(settle(db, session, effect, branch, **said))
        became = {"done": "done", "abort": "given up"}.get(said["verdict"], "to be made again")
        words = f"{record['id']}: {became}. {cut(handed.words, 1000)}"
        tell(as_json, effect_shape(record, session, branch), words)
        return
    if session is None and not (agent or owner or status):
        raise InvalidInput("say which sessions: name one, or use --agent, --owner or --status in_doubt for all of them")
    if session is not None and (agent or owner or status):
        raise InvalidInput("a session is named: --agent, --owner and --status are for many")
    with open_existing(store, blobs) as db:
        named = [session] if session is not None else None
        picked = pick(db, Selection(named, agent, owner, status or "in_doubt"), [])
    if session is not None or dry_run:
        with _awaited(store, blobs) as (db, wait):
            picked = wait(to_resolve(db, picked))
    if session is not None and not picked:
        tells = typed(f"why {quoted(session)}")
        raise NotFound(f"nothing in {session!r:.80} is in doubt: {tells} tells what it does")
    failed: list[Failed] = []

    def settle_batch(batch: list[SessionRow]) -> int:
        with _awaited(store, blobs) as (db, wait):
            return each(batch, lambda session: wait(settle_all(db, session, **said)), failed)

    meant = f"settle all calls in doubt of {count(len(picked), 'session')} as {said['verdict']}"
    if dry_run or not picked or sure(yes, meant):
        act(picked, "resolve", settle_batch, dry_run=dry_run, as_json=as_json, failed=failed)


def _result(text: str) -> Any:
    """What a call returned, for good: nothing that may be a slip is taken for it."""
    try:
        return parse_json(text, "--done")
    except InvalidInput as error:
        raise InvalidInput(f"{error}. A text is written '\"{cut(text, 40)}\"'") from None


@contextlib.contextmanager
def _awaited(
    store: str | None, blobs: str | None
) -> Generator[tuple[AsyncDatabase, Callable[[Coroutine[Any, Any, Any]], Any]]]:
    """An asynchronous database, and what waits for what is done in it."""
    import asyncio

    with asyncio.Runner() as runner:
        db = open_existing_async(store, blobs)
        try:
            yield db, runner.run
        finally:
            runner.run(db.close())


def post(
    session: Session,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What is said to it.")],
    store: Store = None,
    blobs: BlobsAt = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Makes it safe to repeat: it is put there once.")
    ] = None,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Say something to a session that is there; its agent answers when it next runs.

    A message that is there already and not answered yet is not said twice. With --key it is told how it was answered.
    """
    if not message:
        raise InvalidInput("the message is empty: say something")
    if again and key is not None:
        raise InvalidInput("--again says a message once more: leave --key out")
    with open_existing(store, blobs) as db:
        gone = ended(db.kernel, check_session(session))
        same = None if again or key is not None or gone else same_unanswered(db.kernel, session, message)
        named = key or same or os.urandom(12).hex()
        new = db.post(session, message, key=named)
        found = None if new else answer_of(db.kernel, session, named, MAIN)
        words = "posted" if new else "was there already, and is not answered yet"
        if same is not None:
            words += " (--again says it once more)"
        if found is not None:
            words = f"{answered(found.result)}: {cut(found.result.text or found.result.reason, 2000)}"
        if gone:
            words += f". It is gone ({cut(gone, 200)}): whoever takes this up begins it anew"
        answer = None if found is None else run(found.result, found.branch)
        _tell_posted(as_json, session, new, words, begins_anew=bool(gone), message_key=named, answer=answer)
        if not as_json and not gone and found is None:
            _tell_who_answers(db, session)


def _tell_who_answers(db: Database, session: str) -> None:
    """Where a message would lie until a person does something, what that is."""
    found = why(db, session)
    if found.severity == ACT:
        out = Out()
        for line in (str(found), *(f"  {action.command}" for action in found.actions if action.command)):
            out.line(cut(line, 1000), "yellow")


def outcome(
    session: Session,
    effect: Annotated[str, typer.Argument(metavar="EFFECT", help="The id of the call.")],
    result: Annotated[str | None, typer.Argument(metavar="[RESULT]", help="JSON; anything else is text.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    failed: Annotated[str | None, typer.Option(metavar="WHY", help="It certainly did not happen, and why.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report the outcome of a call that was to come later, or whose worker lost its lease."""
    if (result is None) == (failed is None):
        raise InvalidInput("say what became of it: its RESULT, or --failed WHY")
    with open_existing(store, blobs) as db:
        living(db.kernel, check_session(session))
        new = db.post_outcome(session, effect, None if result is None else json_or_text(result), failed=failed)
    known = f"nothing was reported: {effect} has its outcome already"
    _tell_posted(as_json, session, new, "reported" if new else cut(known, 200))


def wake(
    session: Session,
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="What it is told then.")] = None,
    store: Store = None,
    blobs: BlobsAt = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2030-11-30T09:00:00+01:00.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="TIME", help="From now: 90s, 45m, 2h or 7d.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="Again and again: '0 9 * * 1-5'.")] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Whose clocks --cron means: Europe/Berlin.")] = "UTC",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Its name: put there once, and can be cancelled by it.")
    ] = None,
    cancel: Annotated[str | None, typer.Option(metavar="KEY", help="Take back the one of this name instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Have a session told something later, or again and again."""
    ways: dict[str, Any] = {"delay": delay, "cron": cron}
    if cancel is None and sum(way is not None for way in (at, delay, cron)) != 1:
        raise InvalidInput("say when, in exactly one way: --at TIME, --delay 2h, or --cron '0 9 * * *'")
    if cancel is not None and (at or delay or cron or message or key):
        raise InvalidInput("--cancel takes one back: it goes with nothing else")
    with open_existing(store, blobs) as db:
        known(db.kernel, check_session(session))
        if cancel is not None:
            there = db.cancel_wake(session, cancel)
            words = "taken back" if there else f"no wake {cut(cancel, 100)} waits there, so nothing was taken back"
            _tell_posted(as_json, session, there, words)
            if not there:
                raise typer.Exit(1)
            return
        new = db.wake(session, _moment(at), zone=zone, message=message, key=key, **ways)
    _tell_posted(as_json, session, new, "will be woken" if new else "was there already")


def _moment(at: str | None) -> datetime | None:
    if at is None:
        return None
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidInput(f"--at {at[:60]!r} is no time with a time zone: write 2030-11-30T09:00:00+01:00")
    return found


def _tell_posted(
    as_json: bool, session: str, new: bool, words: str, *, begins_anew: bool = False, message_key: str = "",
    answer: Run | None = None,
) -> None:  # fmt: skip
    told = Posted(
        session=session, new=new, begins_anew=begins_anew, message_key=message_key, kept=True, answer=answer
    )  # fmt: skip
    tell(as_json, told, f"{cut(session, 200)}: {words}")
