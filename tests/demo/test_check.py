"""The reckoning finds what is wrong: nothing is believed because a worker says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure.demo.chaos import EVICT, FREEZE, KILL, Hit
from perdure.demo.crowd import night
from perdure.demo.ledger_checks import check_digests, check_sessions, check_shop
from perdure.demo.report import Measured, reckon
from perdure.demo.run import Wish
from tests.demo.standing_in import commit, open_shop, opened, talk_through, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.database import Database
    from perdure.demo.crowd import Talk
    from perdure.demo.shop import Shop

NIGHT = night(11, 4)
TURNS = sum(c.turns for c in NIGHT.conversations)


class Morning:
    """A night that went well."""

    def __init__(self, db: Database, shop: Shop) -> None:
        self.db = db
        self.shop = shop
        self.talks: dict[str, Talk] = told(NIGHT)
        self.first = NIGHT.conversations[0]

    def report(self, *hits: Hit, kills: int = 0) -> dict[str, Any]:
        struck = {KILL: len({h.at for h in hits}), EVICT: 0, FREEZE: 0}
        wish = Wish(None, len(NIGHT.conversations), kills, 11, 2, 0.1)
        measured = Measured(wish, "sqlite:///x", struck, hits, NIGHT.messages, 0, 100, 10.0, [])
        books, spoken = check_shop(self.shop, NIGHT), check_sessions(self.db, self.talks)
        return reckon(measured, self.talks, books, spoken, check_digests(self.db, list(self.talks)))


@pytest.fixture
def morning(tmp_path: Path) -> Iterator[Morning]:
    shop = open_shop(tmp_path, NIGHT)
    with opened(talk_through(tmp_path, NIGHT, shop)) as db:
        yield Morning(db, shop)
    shop.close()


def test_a_night_that_went_well_has_no_problems(morning: Morning):
    report = morning.report()
    assert report["problems"] == []
    assert report["ok"]
    assert report["finished"] == 4
    assert report["turns"] == TURNS
    assert report["verified"]["sessions"] == 4
    assert report["verified"]["checkpoints"] > TURNS


def test_a_refund_that_was_made_twice_is_found_by_its_order(morning: Morning):
    order, cents = next(r for c in NIGHT.conversations for r in c.refunds)
    morning.shop.refund(order, cents / 100, "another key")
    report = morning.report()
    assert report["duplicate_effects"] == 1
    assert f"refund for {order} was made 2 times" in report["problems"]
    assert not report["ok"]


def test_a_repeated_request_that_the_shop_recognised_is_no_duplicate(morning: Morning):
    entry = next(e for e in morning.shop.ledger() if e.kind == "refund")
    morning.shop.refund(entry.order, entry.cents / 100, entry.key)
    report = morning.report()
    assert report["ok"]
    assert (report["repeated_requests"], report["duplicate_effects"]) == (1, 0)


def test_a_message_that_is_in_no_session_is_found(morning: Morning):
    talk = morning.talks[morning.first.session]
    talk.conversation = talk.conversation._replace(lines=(*talk.conversation.lines, "And one more thing."))
    talk.said += 1
    report = morning.report()
    assert report["lost_messages"] == 1
    assert report["finished"] == 3
    assert not report["ok"]


def test_a_message_that_was_never_answered_is_found(morning: Morning):
    talk = morning.talks[morning.first.session]
    talk.conversation = talk.conversation._replace(lines=(*talk.conversation.lines, "And one more thing."))
    talk.said += 1
    with morning.db.session(morning.first.session) as s:
        s.messages.append({"role": "user", "content": "And one more thing."})
        s.commit()
    assert morning.report()["lost_messages"] == 1


def test_a_message_that_is_there_twice_is_found(morning: Morning):
    with morning.db.session(morning.first.session) as s:
        s.messages.append({"role": "user", "content": morning.first.lines[0]})
        s.messages.append({"role": "assistant", "content": "Again?"})
        s.commit()
    report = morning.report()
    assert "1 messages are in their session more than once" in report["problems"]
    assert not report["ok"]


def test_a_conversation_that_was_not_finished_is_found(morning: Morning):
    talk = morning.talks[morning.first.session]
    talk.conversation = talk.conversation._replace(lines=(*talk.conversation.lines, "And one more thing."))
    report = morning.report()
    assert report["finished"] == 3
    assert any("is not finished" in p for p in report["problems"])
    assert report["lost_messages"] == 0


def test_a_run_that_nobody_took_up_again_is_found(morning: Morning):
    session = morning.first.session
    hit = Hit(KILL, session, at=5_000, over=5_010, step=3, tokens=100)
    morning.talks[session].commits.append(commit(5_005, 3, "running"))
    report = morning.report(hit, kills=1)
    assert any("never taken up" in p for p in report["problems"])
    morning.talks[session].commits.append(commit(6_200, 4, "idle"))
    report = morning.report(hit, kills=1)
    assert report["ok"]
    assert (report["recovery_p50_seconds"], report["recovery_max_seconds"]) == (1.2, 1.2)
    assert (report["sessions_hit"], report["hits"], report["resumes"]) == (1, 1, 1)
    assert report["tokens_saved_percent"] == pytest.approx(
        100 * 100 / check_sessions(morning.db, morning.talks).tokens[session], abs=0.05
    )


def test_kills_that_found_nothing_to_interrupt_are_told(morning: Morning):
    assert any("only 0 of 3 kills" in p for p in morning.report(kills=3)["problems"])


def test_many_problems_of_a_kind_are_told_in_short(morning: Morning):
    for entry in morning.shop.ledger():
        if entry.kind == "refund":
            morning.shop.refund(entry.order, entry.cents / 100)
    problems = check_shop(morning.shop, NIGHT).problems
    assert len(problems) <= 7
