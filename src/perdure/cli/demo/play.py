"""The demo's other side: starts the agent, kills it, starts it again, and does the reckoning."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.cli.demo.agent import AT_RANDOM, COMMITS, MOMENTS, SESSION
from perdure.cli.demo.bank import Bank, Books

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.cli.output import Out

LEAST_TURNS = 12
_PATIENCE = 60.0


class Kill(NamedTuple):
    """One end of the agent's process."""

    turn: int
    moment: str
    passage: int
    """Of a commit: the how-manieth of its turn."""
    delay: float
    """Of a random moment: seconds after the turn before it."""


class Life(NamedTuple):
    """One process of the agent, from start to end."""

    opened: str
    step: int
    turn: int
    """The last turn it finished."""
    code: int


class Outcome(NamedTuple):
    """What was found at the end."""

    turns: int
    checkpoints: int
    books: Books
    digest: str
    problems: list[str]


def play(*, kills: int, seed: int | None, keep: str | None, as_json: bool) -> bool:
    """The whole demo; True when everything is as it should be."""
    from perdure.cli.output import Out, print_json

    began = time.monotonic()
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    turns = max(LEAST_TURNS, kills + 2)
    plan = plan_kills(random.Random(seed), kills, turns)
    out = None if as_json else Out()
    if out is not None:
        out.line(f"An agent settles {turns} orders: it looks each price up and charges the customer's bank.", "bold")
        out.line(f"Its process is killed with SIGKILL {kills} times on the way (seed {seed}).")
        out.line()
    with _folder(keep) as folder:
        lives = _killed_run(f"{folder}/killed", turns, plan, out)
        got = _outcome(f"{folder}/killed", turns)
        whole = f"{folder}/whole"
        os.mkdir(whole)
        _live(whole, turns, None)
        wanted = _outcome(whole, turns)
    problems = [*got.problems, *(f"uninterrupted run: {p}" for p in wanted.problems)]
    died = sum(life.code == -9 for life in lives)
    resumed = sum(life.opened == "resumed" for life in lives)
    if died != kills:
        problems.append(f"{died} of {kills} kills took place")
    if got.digest != wanted.digest:
        problems.append("the state differs from that of an uninterrupted run")
    took = time.monotonic() - began
    if out is None:
        print_json(_report(seed, plan, resumed, turns, got, wanted, problems, took))
    else:
        _print_report(out, died, resumed, turns, got, wanted, problems, took)
        if keep:
            out.line(f"\nLook at it: perdure log {SESSION} --store {os.path.join(keep, 'killed', 'agents.db')}".strip())
    return not problems


def plan_kills(chance: random.Random, kills: int, turns: int) -> list[Kill]:
    """When to kill: each kind of moment as often as the others, in turns that chance chooses."""
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(kills)]
    chance.shuffle(moments)
    places = sorted(chance.sample(range(2, turns + 1), kills))
    return [
        Kill(turn, moment, chance.randint(1, COMMITS), chance.uniform(0, 0.02))
        for turn, moment in zip(places, moments, strict=True)
    ]


@contextlib.contextmanager
def _folder(keep: str | None) -> Generator[str]:
    import tempfile

    from perdure.errors import InvalidInput

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
            os.mkdir(f"{folder}/killed")
            yield folder
        return
    if os.path.exists(keep):
        raise InvalidInput(f"{keep} exists already: name a new folder to keep the databases in")
    os.makedirs(f"{keep}/killed")
    yield os.path.abspath(keep)


def _killed_run(folder: str, turns: int, plan: list[Kill], out: Out | None) -> list[Life]:
    lives: list[Life] = []
    for number, kill in enumerate([*plan, None], start=1):
        life = _live(folder, turns, kill)
        lives.append(life)
        if out is None:
            continue
        start = "starts" if life.opened == "created" else f"resumes at step {life.step}"
        end = "finishes" if kill is None else f"killed {kill.moment}, turn {kill.turn}"
        out.line(f"  process {number:2}  {start:20}  {end}", "green" if kill is None else "red")
    return lives


def _live(folder: str, turns: int, kill: Kill | None) -> Life:
    """Start the agent; kill it when it has reached the moment."""
    command = [sys.executable, "-m", "perdure.cli.demo.agent", folder, str(turns)]
    if kill is not None:
        command += [kill.moment, str(kill.turn), str(kill.passage)]
    opened, step, turn = "", 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "opened":
                    opened, at = rest.split(" ")
                    step = int(at)
                elif word == "turn":
                    turn = int(rest)
                    if kill is not None and kill.moment == AT_RANDOM and turn >= kill.turn - 1:
                        time.sleep(kill.delay)
                        break
                elif word == "here":
                    break
            if kill is not None:
                child.kill()
            code = child.wait(_PATIENCE)
        except BaseException:
            child.kill()
            raise
    return Life(opened, step, turn, code)


def _outcome(folder: str, turns: int) -> Outcome:
    """Look at what is there, with a handle of our own."""
    import perdure

    bank = Bank(f"{folder}/bank.db")
    books = bank.books()
    bank.close()
    problems: list[str] = []
    with perdure.open(f"sqlite:///{folder}/agents.db", maintain=False) as db:
        reading = db.read(SESSION)
        state = reading.plain()
        checkpoints = len(db.history(SESSION, limit=100_000))
        status = reading.checkpoint.status
    done: int = state["vars"].get("settled", 0)
    if done != turns or status != "idle":
        problems.append(f"{done} of {turns} turns were finished, status {status}")
    if books.charges != turns:
        problems.append(f"the bank made {books.charges} charges for {turns} orders")
    if books.orders != books.charges:
        problems.append("an order was charged twice")
    if books.total != state["vars"].get("total"):
        problems.append("the agent's total is not the bank's")
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    return Outcome(done, checkpoints, books, digest, problems)


def _report(
    seed: int,
    plan: list[Kill],
    resumed: int,
    turns: int,
    got: Outcome,
    wanted: Outcome,
    problems: list[str],
    took: float,
) -> dict[str, Any]:
    return {
        "ok": not problems,
        "seed": seed,
        "kills": [{"turn": k.turn, "moment": k.moment} for k in plan],
        "resumes": resumed,
        "turns": {"done": got.turns, "wanted": turns},
        "checkpoints": got.checkpoints,
        "charges": {
            "made": got.books.charges,
            "wanted": turns,
            "requests": got.books.requests,
            "total": got.books.total,
        },
        "state": {"digest": got.digest, "uninterrupted": wanted.digest, "equal": got.digest == wanted.digest},
        "problems": problems,
        "seconds": round(took, 2),
    }


def _print_report(
    out: Out, died: int, resumed: int, turns: int, got: Outcome, wanted: Outcome, problems: list[str], took: float
) -> None:
    again = got.books.requests - got.books.charges
    rows = [
        ["kills", str(died), "SIGKILL, nothing could be tidied up"],
        ["resumes", str(resumed), "each from the session's id alone"],
        ["turns completed", f"{got.turns} of {turns}", f"{got.checkpoints} checkpoints"],
        ["charges made", f"{got.books.charges} of {turns}", f"{again} repeated requests, recognised by the bank"],
        ["state digest", got.digest[:16], "equal" if got.digest == wanted.digest else f"not {wanted.digest[:16]}"],
        ["uninterrupted run", wanted.digest[:16], f"the same orders without a kill ({took:.1f} s in all)"],
    ]
    out.line()
    out.table(("WHAT", "RESULT", "REMARK"), rows)
    out.line()
    for problem in problems:
        out.line(f"PROBLEM: {problem}", "bold red")
    if not problems:
        out.line("Nothing was lost, nothing was paid twice, and the result is the same.", "bold green")
