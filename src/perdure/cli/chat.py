"""A conversation in the terminal: what the agent says as it says it, and what people must decide, decided here."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from perdure.agent import run_result as ended
from perdure.agent.children import release
from perdure.agent.models import text_of
from perdure.agent.said_once import same_unanswered
from perdure.cli.agents import agent_for, look_why, open_to_run
from perdure.cli.output import STOPPED, Out
from perdure.cli.terminal_text import call_in_full, cut, safe
from perdure.errors import Gone, InvalidInput, NotFound, PerdureError
from perdure.fleet.status import settle
from perdure.model import MAIN
from perdure.session.inbox import open_entry
from perdure.system.flow_async import in_thread
from perdure.system.wording import as_json, json_or_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from perdure.agent.agent import Agent
    from perdure.agent.app_loader import App
    from perdure.agent.run_result import Doubt, RunResult
    from perdure.agent.session_stream import Event
    from perdure.aio import AsyncDatabase
    from perdure.session.calls.approvals import Approval

HELP = "/quit ends this, /help says this; everything else is said to the agent."
SHOWN = 6
"""Messages of an earlier conversation that are shown again."""
WIDE = 300


class Chat:
    """One person, one agent, one session."""

    def __init__(self, loaded: App, session: str, owner: str = "") -> None:
        self._loaded = loaded
        self._session = session
        self._owner = owner
        self._screen = Screen()

    def hold(self, store: str | None, blobs: str | None = None) -> int:
        """Talk until somebody has had enough; the exit code."""
        with asyncio.Runner() as runner:
            self._wait = runner.run
            db = open_to_run(self._loaded, store, blobs)
            try:
                self._agent = self._wait(agent_for(db, self._loaded, self._session))
                self._wait(self._welcome(db))
                self._settle(db, None)
                while (said := self._screen.ask("> ")) is not None and said != "/quit":
                    if said == "/help":
                        self._screen.line(HELP)
                    elif said:
                        self._settle(db, said)
            except KeyboardInterrupt:
                self._screen.line("Stopped. The same command goes on from here.", "dim")
                return STOPPED
            finally:
                self._wait(_close(self._loaded, db))
        return 0

    _agent: Agent
    """Whose session it is; known as soon as that was looked at."""
    _wait: Callable[[Coroutine[Any, Any, Any]], Any]
    """Waits for something asynchronous. Questions are put outside of it, where an interrupt ends them at once."""

    # -- where it stands ------------------------------------------------------------------------------------------

    async def _welcome(self, db: AsyncDatabase) -> None:
        """What was said before, and what was said and not answered."""
        screen = self._screen
        try:
            reading = await db.read(self._session)
        except Gone as gone:
            said = f"an earlier one is gone ({cut(gone.reason, 200)}), and it begins anew"
            screen.line(f"{self._agent.name}, session {self._session}: {said}. {HELP}", "dim")
        except NotFound:
            screen.line(f"{self._agent.name}, session {self._session}: new. {HELP}", "dim")
        else:
            step, status = reading.checkpoint.step, reading.checkpoint.status
            screen.line(f"{self._agent.name}, session {self._session}: resumed at step {step}, {status}.", "dim")
            messages: list[dict[str, Any]] = reading.plain()["messages"]
            for message in [m for m in messages if m.get("role") in ("user", "assistant") and text_of(m)][-SHOWN:]:
                who = ">" if message["role"] == "user" else " "
                screen.line(f"{who} {cut(text_of(message), WIDE)}", "dim")
        for entry in await in_thread(db.kernel.store.inbox, self._session, 100):
            if entry.kind == "message":
                said = open_entry(db.kernel, entry).body
                text = said if isinstance(said, str) else as_json(said)
                screen.line(f"> {cut(text, WIDE)}   (not answered yet)", "dim")

    def _settle(self, db: AsyncDatabase, message: str | None) -> None:
        """Have the agent work until it waits for nobody in this room."""
        while True:
            try:
                result: RunResult = self._wait(self._run(db, message))
            except PerdureError as e:
                if message is None:
                    raise
                kept = "Not answered yet, and kept: say the same again to go on with it. "
                self._screen.line(f"{kept if e.kept else 'Not said: '}{e.args[0] if e.kept else e}", "red")
                return
            message = None
            if not self._decided(db, result):
                return

    async def _run(self, db: AsyncDatabase, message: str | None) -> RunResult:
        key: str | None = None
        if message is not None:
            key = await db.driver.call(same_unanswered, db.kernel, self._session, message)
            if key is not None:
                self._screen.line("The same message is there and not answered yet: it is gone on with.", "dim")
        try:
            return await self._agent.run(
                db, session=self._session, owner=self._owner, message=message, key=key, on_event=self._screen.event,
                agents=self._loaded.others(self._agent),
            )  # fmt: skip
        finally:
            self._screen.end_line()

    # -- what people decide ---------------------------------------------------------------------------------------

    def _decided(self, db: AsyncDatabase, result: RunResult) -> bool:
        """Put what waits for a person to the person; whether the agent has something to go on with then."""
        by = os.environ.get("USER") or "chat"
        for note in result.notes:
            self._screen.line(note, "dim")
        for raised in result.raised:
            self._screen.line(str(raised), "red")
            for line in raised.traceback.splitlines():
                self._screen.line(f"    {line}", "dim")
        decided = [self._approve(db, approval, by) for approval in result.approvals]
        decided += [self._resolve(db, doubt, by) for doubt in result.in_doubt]
        if result.status not in (ended.DONE, ended.WAITING_APPROVAL, ended.IN_DOUBT):
            self._screen.line(f"({result.status}{': ' + result.reason if result.reason else ''})", "yellow")
            if result.status == ended.FAILED:
                self._screen.line(f"  {cut(look_why(self._session, MAIN), 1000)}", "dim")
        return any(decided)

    def _approve(self, db: AsyncDatabase, approval: Approval, by: str) -> bool:
        screen = self._screen
        if approval.question:
            return self._answer(db, approval, by)
        asked, facts = as_json(approval.args), "" if approval.facts is None else as_json(approval.facts)
        because = f", because {approval.because}" if approval.because else ""
        if len(asked) + len(facts) <= WIDE:
            screen.line(f"May I? {approval.tool} {asked}{f' ({facts})' if facts else ''}{because}", "yellow")
        else:
            # Who agrees must have seen all of it.
            screen.line(f"May I? {approval.tool}{because}", "yellow")
            screen.line(as_json(approval.args, indent=2))
            screen.line(f"facts: {as_json(approval.facts, indent=2)}" if facts else "")
        while True:
            match screen.ask("? yes, no, edit or later: "):
                case "y" | "yes":
                    self._wait(db.approve(self._session, approval.id, by=by, wake=False))
                    return True
                case "n" | "no":
                    reason = screen.ask("? why (may be empty): ") or ""
                    self._wait(db.reject(self._session, approval.id, by=by, reason=reason, wake=False))
                    return True
                case "e" | "edit":
                    args = json_or_text(screen.ask(f"? the arguments as JSON, now {safe(asked)}: ") or "")
                    if not _is_object(args):
                        screen.line("That is no JSON object.", "red")
                        continue
                    try:
                        self._wait(db.approve(self._session, approval.id, by=by, args=args, wake=False))
                    except InvalidInput as e:
                        screen.line(str(e), "red")
                        continue
                    return True
                case "l" | "later" | None:
                    return self._left()
                case _:
                    pass

    def _answer(self, db: AsyncDatabase, approval: Approval, by: str) -> bool:
        from perdure.session.tools.answer_schema import misfit

        while value := self._screen.ask(f"? {safe(approval.question)} "):
            # Where text is wanted, what was typed is text, even if it looks like a number.
            given = value if approval.schema and not misfit(value, approval.schema) else json_or_text(value)
            if not (wrong := misfit(given, approval.schema)):
                self._wait(db.answer(self._session, approval.id, given, by=by, wake=False))
                return True
            self._screen.line(f"{wrong[:1].upper()}{wrong[1:]}.", "red")
        return self._left()

    def _resolve(self, db: AsyncDatabase, doubt: Doubt, by: str) -> bool:
        screen, result = self._screen, None
        screen.line(doubt.question, "yellow")
        for line in call_in_full(doubt.tool, doubt.args)[1]:
            screen.line(line)
        while True:
            match screen.ask("? done (it happened), retry (it did not), abort (it did not, give up) or later: "):
                case "d" | "done":
                    verdict = "done"
                    result = json_or_text(screen.ask("? its result, JSON or text: ") or "")
                case "r" | "retry":
                    verdict = "retry"
                case "a" | "abort":
                    verdict = "abort"
                case "l" | "later" | None:
                    return self._left()
                case _:
                    continue
            said: dict[str, Any] = {"by": by, "verdict": verdict, "result": result, "wake": False}
            self._wait(settle(db, self._session, doubt.effect, MAIN, **said))
            return True

    def _left(self) -> bool:
        self._screen.line("It stays open: the same command asks again.", "dim")
        return False


async def _close(loaded: App, db: AsyncDatabase) -> None:
    await release(*loaded.agents)
    await db.close()


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


class Screen:
    """The terminal, or a pipe: whole lines, pieces of lines, and questions. Nothing an agent says can steer it."""

    def __init__(self) -> None:
        self._out = Out()
        self._open = False
        self._said = ""
        if sys.stdin.isatty():
            import readline as _  # noqa: F401 - importing it is what makes input() editable

    def line(self, text: str, style: str = "") -> None:
        """A line of our own."""
        self.end_line()
        for part in text.split("\n"):
            self._out.line(part, style)

    def piece(self, text: str) -> None:
        """A part of what the agent says."""
        self._open = True
        sys.stdout.write("\n".join(safe(line) for line in text.split("\n")))
        sys.stdout.flush()

    def end_line(self) -> None:
        """The next thing begins a new line."""
        if self._open:
            self._open = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def ask(self, prompt: str) -> str | None:
        """What the person types; None when there is nobody any more."""
        self.end_line()
        sys.stdout.flush()
        try:
            return input(prompt if self._out.terminal else "").strip()
        except EOFError:
            return None

    def event(self, event: Event) -> None:
        """Show what happens in a run."""
        data = event.data
        match event.kind:
            case "delta" if data.get("text"):
                self._said += data["text"]
                self.piece(data["text"])
            case "retracted":
                if self._said:
                    self.line("(taken back, it begins again)", "dim")
                self._said = ""
            case "committed":
                if data.get("text") and not self._said:
                    self.piece(data["text"])
                self._said = ""
                self.end_line()
            case "call":
                self.line(f"· {data['tool']} …", "dim")
            case "outcome" if data["status"] in ("done", "failed", "unknown", "waiting"):
                self.line(f"· {data['tool']}: {data['status']}", "dim")
            case _:
                pass
