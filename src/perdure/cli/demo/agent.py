"""The agent of the demo, a process of its own: ``python -m perdure.cli.demo.agent FOLDER TURNS [MOMENT TURN PASSAGE]``.

It works through orders: notes each one down, looks its price up, charges it, notes the receipt. The plain loop in
:func:`work` is all there is to it; everything else in this file is there to be killed at the right moment.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import perdure
from perdure import faults
from perdure.cli.demo.bank import Bank

if TYPE_CHECKING:
    from perdure.context import Context
    from perdure.session import Session

SESSION, RUN = "orders", "today"
IN_LOOKUP, BEFORE_CHARGE, AFTER_CHARGE = "inside the lookup", "before the bank hears of it", "charged, not recorded"
IN_COMMIT, AFTER_COMMIT = "in the middle of a commit", "committed, not yet told so"
AT_RANDOM = "at a random moment"
MOMENTS = (AFTER_CHARGE, IN_COMMIT, IN_LOOKUP, AFTER_COMMIT, BEFORE_CHARGE, AT_RANDOM)
COMMITS = 4
"""Commits of one turn: the request, the start of the charge, its outcome, the receipt."""
_POINTS = {IN_COMMIT: "sqlite.append.before_commit", AFTER_COMMIT: "sqlite.append.after_commit"}


class Stage:
    """Where the process stops and waits to be killed."""

    def __init__(self, moment: str, turn: int, passage: int) -> None:
        self._moment = moment
        self._turn = turn
        self._left = passage if moment in _POINTS else 1
        self.turn = 0
        if moment in _POINTS:
            faults.hook = self._at_point

    def reach(self, moment: str) -> None:
        """Say that a moment was reached; at the chosen one, wait for the end."""
        if moment != self._moment or self.turn != self._turn:
            return
        self._left -= 1
        if not self._left:
            print(f"here {moment}", flush=True)
            while True:
                time.sleep(60)

    def pause(self, seconds: float = 0.005) -> None:
        """Take a breath, so that a random moment falls into the work and not behind it."""
        if self._moment == AT_RANDOM:
            time.sleep(seconds)

    def _at_point(self, name: str) -> None:
        if name == _POINTS[self._moment]:
            self.reach(self._moment)


def main(folder: str, turns: int, moment: str = "", at_turn: int = 0, passage: int = 1) -> None:
    """Work through all orders, or go on where an earlier process was stopped."""
    bank = Bank(f"{folder}/bank.db")
    stage = Stage(moment, at_turn, passage)

    @perdure.tool(read=True)
    def price(item: str) -> int:
        stage.reach(IN_LOOKUP)
        return 100 + 7 * int(item.removeprefix("order-"))

    @perdure.tool(if_unsure="retry", key_valid_for="24h")
    def charge(item: str, amount: int, ctx: Context) -> str:
        stage.reach(BEFORE_CHARGE)
        receipt = bank.charge(ctx.effect_id, item, amount)
        stage.reach(AFTER_CHARGE)
        return receipt

    def work(s: Session) -> int:
        total = 0
        for turn in range(1, turns + 1):
            stage.turn = turn
            item = f"order-{turn}"
            s.messages.append({"role": "user", "content": f"Please settle {item}."})
            s.commit()
            stage.pause()
            amount: int = s.call(price, item)
            receipt = s.call(charge, item, amount)
            stage.pause()
            total += amount
            s.messages.append({"role": "assistant", "content": receipt})
            s.vars["settled"], s.vars["total"] = turn, total
            s.commit()
            print(f"turn {turn}", flush=True)
            stage.pause(1.0 if turn == turns else 0.005)
        return total

    with perdure.open(f"sqlite:///{folder}/agents.db") as db, db.session(SESSION, owner="demo") as s:
        print(f"opened {s.opened} {s.step}", flush=True)
        total: Any = s.run(RUN, work)
        print(f"total {total}", flush=True)


if __name__ == "__main__":
    folder, turns, moment, at_turn, passage = (*sys.argv[1:], "", "0", "1")[:5]
    main(folder, int(turns), moment, int(at_turn), int(passage))
