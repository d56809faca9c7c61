"""``perdure query`` and the views behind it: what the documentation asks is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure import NotDone, tool
from tests.cli.documents import blocks
from tests.cli.test_docs import ROOT
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@tool(approve=lambda a: a["amount"] > 100)
def refund(order: str, amount: int) -> str:
    """Give money back."""
    return f"{amount} for {order}"


@tool
def charge(card: str) -> str:
    """Take money."""
    raise NotDone(f"{card} was declined")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Three agents: one failed at step 5, one waits for a person, one did its work."""
    url = url_of("postgres", tmp_path)
    with perdure.open(url) as db:
        with db.session("failed", owner="ana") as s:
            for n in range(3):
                s.vars["n"] = n
                s.commit()
            with pytest.raises(perdure.EffectFailed):
                s.call(charge, card="visa")
        with db.session("waits", owner="bea") as s, pytest.raises(perdure.ApprovalNeeded):
            s.call(refund, order="o1", amount=500)
        with db.session("done", owner="bea") as s:
            s.run("the run", lambda s: s.call(refund, order="o2", amount=5))
    return url


def ask(command: Command, url: str, sql: str) -> list[dict[str, Any]]:
    answer = command("query", sql, "--store", url, "--json")
    assert answer.code == 0, answer.err
    return answer.json["rows"]


def documented() -> list[str]:
    text = (ROOT / "docs/howto/postgresql.md").read_text("utf-8")
    return [block.text for block in blocks(text) if block.language == "sql"]


def test_the_queries_of_the_documentation_are_answered(command: Command, shop: str):
    causes, failed, doubtful, waiting, rates = documented()
    assert sum(row["count"] for row in ask(command, shop, causes)) == 3
    (row,) = ask(command, shop, failed)
    assert (row["session"], row["owner"], row["tool"], row["error"]) == ("failed", "ana", "charge", "visa was declined")
    assert ask(command, shop, doubtful) == []
    assert [row["session"] for row in ask(command, shop, waiting)] == ["waits"]
    assert {row["tool"]: (row["calls"], row["failed"]) for row in ask(command, shop, rates)} == {
        "charge": (1, 1),
        "refund": (2, 0),
    }


def test_an_effect_is_one_row_that_says_where_it_stands(command: Command, shop: str):
    rows = ask(command, shop, "select session, tool, status, run from perdure_effects order by session")
    assert rows == [
        {"session": "done", "tool": "refund", "status": "done", "run": "the run"},
        {"session": "failed", "tool": "charge", "status": "failed", "run": None},
        {"session": "waits", "tool": "refund", "status": "planned", "run": None},
    ]


@pytest.mark.parametrize(("agrees", "status"), [(True, "used"), (False, "rejected")])
def test_an_approval_is_one_row_that_says_what_became_of_it(command: Command, shop: str, agrees: bool, status: str):
    sql = "select approval, status, tool, ended is null as open from perdure_approvals"
    (asked,) = ask(command, shop, sql)
    assert (asked["status"], asked["tool"], asked["open"]) == ("pending", "refund", True)
    with perdure.open(shop) as db:
        (db.approve if agrees else db.reject)("waits", asked["approval"], by="bob", reason="because")
        assert ask(command, shop, sql)[0]["status"] == "decided"
        with db.session("waits") as s:
            if agrees:
                s.call(refund, order="o1", amount=500)
            else:
                with pytest.raises(perdure.EffectFailed):
                    s.call(refund, order="o1", amount=500)
    (row,) = ask(command, shop, sql)
    assert (row["approval"], row["status"], row["open"]) == (asked["approval"], status, False)


def test_sessions_show_owner_status_and_what_waits(command: Command, shop: str):
    with perdure.open(shop) as db:
        db.post("done", "hello")
    rows = ask(command, shop, "select session, owner, status, waiting, step from perdure_sessions order by session")
    assert [(row["session"], row["owner"], row["status"], row["waiting"]) for row in rows] == [
        ("done", "bea", "idle", 1),
        ("failed", "ana", "idle", 0),
        ("waits", "bea", "waiting_approval", 0),
    ]


def test_people_get_a_table(command: Command, shop: str):
    lines = command("query", "select session, owner from perdure_sessions order by 1", "--store", shop).out.splitlines()
    assert [line.split() for line in lines] == [
        ["session", "owner"],
        ["done", "bea"],
        ["failed", "ana"],
        ["waits", "bea"],
        ["3", "rows"],
    ]


def test_no_more_rows_than_were_asked_for(command: Command, shop: str):
    answer = command("query", "select generate_series(1, 10) as n", "--store", shop, "--limit", "3", "--json").json
    assert ([row["n"] for row in answer["rows"]], answer["more"]) == ([1, 2, 3], True)
    assert "there are more" in command("query", "select generate_series(1, 10)", "--store", shop, "--limit", "3").out


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("delete from perdure_row", "only read"),
        ("drop table perdure_row", "only read"),
        ("select 1; select 2", "one statement"),
        ("commit", "gives no rows"),
        ("select * from nowhere", "does not exist"),
        ("nonsense", "syntax error"),
        ("select pg_sleep(60)", "took over 0.2 seconds"),
        ("", "gives no rows"),
    ],
)
def test_whatever_is_no_quick_question_is_refused_and_changes_nothing(command: Command, shop: str, sql: str, said: str):
    result = command("query", sql, "--store", shop, "--timeout", "0.2")
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert ask(command, shop, "select count(*) as n from perdure_steps")[0]["n"] > 5


def test_a_store_elsewhere_says_that_it_cannot_be_asked(command: Command, trip: Path):
    result = command("query", "select 1")
    assert result.code == 2
    assert "only there" in result.err


def test_looking_makes_no_store_where_there_is_none(command: Command, tmp_path: Path):
    url = url_of("postgres", tmp_path, "nowhere")
    for argv in (["query", "select 1"], ["ls"]):
        result = command(*argv, "--store", url)
        assert result.code == 3
        assert "nothing was made" in result.err
