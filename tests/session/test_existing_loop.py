"""The loop of ``docs/howto/existing-loop.md``: few lines differ, and no kill loses or doubles anything."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from tests.campaigns.crash.zygote import Zygote
from tests.cli.documents import blocks
from tests.session.existing_loop import MESSAGE, SESSION

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/existing-loop.md"
LINES = 30
BOUNDARIES = ("run.", "commit.", "refund.", "ask_model.")
"""Around all that is written, and around all that is done."""


def programs() -> dict[str, str]:
    """The files of the page, by name."""
    texts = [b.text for b in blocks(PAGE.read_text("utf-8")) if b.text.startswith("# file: ")]
    return {text.partition("\n")[0].removeprefix("# file: "): text for text in texts}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote("tests.session.existing_loop")
    yield started
    started.close()


class Loop:
    """The page's programs in a folder, run there, killed there."""

    def __init__(self, zygote: Zygote, folder: Path, program: str) -> None:
        self._zygote, self._folder, self._program = zygote, folder, program
        folder.mkdir(exist_ok=True)
        for name, text in programs().items():
            (folder / name).write_text(text, "utf-8")

    def live(self, **kill: Any) -> dict[str, Any] | None:
        """One life: what it told; None when it was killed."""
        ended = self._zygote.do({"folder": str(self._folder), "program": self._program, **kill})
        return None if ended["killed"] else json.loads((self._folder / "told.json").read_text("utf-8"))

    def charged(self) -> list[tuple[str, int]]:
        """What the bank has paid."""
        bank = self._folder / "bank.jsonl"
        paid = [json.loads(line) for line in bank.read_text("utf-8").splitlines()] if bank.exists() else []
        return [(order, amount) for order, amount, _ in paid]

    def conversation(self) -> list[dict[str, Any]]:
        """What the session holds in the end."""
        with perdure.open(f"sqlite:///{self._folder}/agents.db", maintain=False) as db:
            return db.read(SESSION).plain()["messages"]


def test_fewer_than_thirty_lines_change():
    before, after = (
        [line for line in programs()[f"{name}.py"].splitlines()[1:] if line] for name in ("before", "after")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changed) < LINES, "\n".join(changed)


def test_the_loop_of_before_charges_twice(zygote: Zygote, tmp_path: Path):
    """The reason for all this, and the proof that a charge too many is seen here."""
    loop = Loop(zygote, tmp_path, "before")
    assert loop.live(point="refund.done", hit=1) is None
    told = loop.live()
    assert told is not None
    assert loop.charged() == [("A-7", 120)] * 2


def test_killed_at_every_boundary_it_ends_as_if_it_never_had(zygote: Zygote, tmp_path: Path):
    undisturbed = Loop(zygote, tmp_path / "undisturbed", "after")
    told = undisturbed.live()
    assert told is not None
    assert undisturbed.charged() == [("A-7", 120)]
    conversation = undisturbed.conversation()
    assert [m["role"] for m in conversation] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert conversation[0]["content"] == MESSAGE
    points = Counter({p: n for p, n in told["points"].items() if p.startswith(BOUNDARIES)})
    assert {"refund.done", "commit.after_write", "commit.before_write", "run.after_function"} <= points.keys()
    places = [(point, hit) for point, count in points.items() for hit in range(1, count + 1)]
    for at, (point, hit) in enumerate(places):
        loop = Loop(zygote, tmp_path / str(at), "after")
        assert loop.live(point=point, hit=hit) is None, (point, hit)
        again = loop.live()
        assert again is not None
        assert (again.get("text"), again.get("problem")) == (told["text"], None), (point, hit)
        assert (loop.charged(), loop.conversation()) == (undisturbed.charged(), conversation), (point, hit)
