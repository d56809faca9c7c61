"""What callers were told, and what the conversation holds: each message once, answered once, to whoever said it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perdure.agent.models import text_of
from tests.campaigns.said_once.life import COMMAND

ANSWERED, KILLED = "answered", "killed, and cannot know"
ANOTHER = "used before for another content"
WHERE = re.compile(r"The message is kept: .*?(?:key='([^']+)'|--key (\S+))")
"""What an error says of a message that is not lost."""


@dataclass
class Caller:
    """Somebody who has one thing to say."""

    session: str
    name: str
    door: str
    message: str
    key: str | None
    """The key of its own choice; without, it has only what it is told."""
    deaths: list[str] | None = None
    """At which points it is killed, one after the other; None: chance decides."""
    other: bool = False
    """Whether the key was another message's: it must be refused."""
    expects: Caller | None = None
    """Who said it before: whoever says it again must be told the same."""
    seed: float = 0.0
    known: str | None = None
    """What it is said with next: its own key, or one that it was told."""
    end: str = ""
    text: str = ""
    kept: bool = False
    """Whether it was ever told that the message is safe."""
    cut_off: bool = False
    """Whether it was killed once, and so may have been answered without hearing it."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = self.key

    def repeats(self, other: Caller) -> None:
        """It says what another one says, with its key: at the same time, or long after."""
        self.message, self.key, self.known = other.message, other.key, other.key
        self.expects = other

    def misuses(self, other: Caller) -> None:
        """It says something of its own under the key of another one."""
        self.key = self.known = other.key
        self.other = True

    def hears(self, *, killed: bool) -> bool:
        """Take in how a life ended; whether there is nothing left to say."""
        last = self.entries[-1]
        for entry in self.entries:
            if entry["what"] == "accepted":
                self.known, self.kept = entry["key"], True
        if killed:
            self.cut_off = True
            if self.known is None and self.door != COMMAND:
                # Nobody has told it a key, and saying it again might be saying it twice.
                self.end = KILLED
            return bool(self.end)
        match last["what"]:
            case "told":
                self.end, self.text = ANSWERED, last["text"]
                self._check(last)
            case "unheard":
                self.end = KILLED
            case "refused" if ANOTHER in last["words"]:
                self.end = "refused"
                if not self.other:
                    self.problems.append(f"{self.message} was refused: {last['words']}")
            case "refused":
                if found := WHERE.search(last["words"]):
                    # It does what the error says.
                    self.known, self.kept = found[1] or found[2], True
                elif "kept" in last["words"] and "is not kept" not in last["words"]:
                    self.problems.append(f"it is kept, and nobody says where: {last['words']}")
            case _:
                self.end = "problem"
                self.problems.append(str(last.get("trace", last)))
        return bool(self.end)

    def _check(self, told: dict[str, Any]) -> None:
        if self.other:
            self.problems.append(f"{self.message} was answered under the key {self.key} of another message")
        elif told["status"] != "done" or self.message not in told["text"].split():
            self.problems.append(f"{self.message} was answered {told['status']} {told['text']!r}")
        elif self.expects is not None and self.expects.end == ANSWERED and told["text"] != self.expects.text:
            self.problems.append(f"{self.message} was answered {told['text']!r}, and {self.expects.text!r} before")
        elif self.known is not None and told["key"] != self.known:
            self.problems.append(f"{self.message} has the key {self.known}, and was answered as {told['key']}")


class Verdict(NamedTuple):
    """One session, judged."""

    session: str
    messages: int
    twice: list[str]
    """Messages that are there, or were answered, more than once."""
    anew: list[str]
    """Said again at the command line without a key by somebody who was killed after the first was answered."""
    lost: list[str]
    """Messages that somebody was told are answered or kept, and that are not there or have no answer."""
    stranded: list[str]
    """Callers who came to no answer, however often they did what they were told."""
    wrong: list[str]
    """Callers who were told something else than the answer to their own message."""
    unknown: int
    """Callers who were killed without a key; of these:"""
    unsaid: int
    """Messages that are not there."""

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        return not (self.twice or self.lost or self.stranded or self.wrong)


def judge(session: str, callers: list[Caller], messages: list[dict[str, Any]]) -> Verdict:
    """Judge one session."""
    said = [text_of(m) if m["role"] == "user" else None for m in messages]
    named = [text_of(m).split()[1:] if m["role"] == "assistant" and not m.get("tool_calls") else () for m in messages]
    twice, anew, lost, unsaid = list[str](), list[str](), list[str](), list[str]()
    # Twins and those who come late say what another one says: a message is judged once, by all who said it.
    for message in dict.fromkeys(c.message for c in callers):
        speakers = [c for c in callers if c.message == message]
        there = [i for i, text in enumerate(said) if text == message]
        answered = [i for i, names in enumerate(named) for name in names if name == message]
        if all(c.other for c in speakers):
            twice += [message] * bool(there)
            continue
        if len(there) > 1 and _again_after_its_answer(speakers, there, answered):
            anew.append(message)
        elif len(there) > 1 or len(answered) > 1:
            twice.append(message)
        elif len(there) != len(answered) or (not there and any(c.kept or c.end == ANSWERED for c in speakers)):
            lost.append(message)
        elif not there:
            unsaid.append(message)
    return Verdict(
        session, len({c.message for c in callers if not c.other}), twice, anew, lost,
        [c.name for c in callers if c.end == "stranded"],
        [f"{c.name} ({c.door}): {p}" for c in callers for p in c.problems],
        sum(c.end == KILLED for c in callers), len(unsaid),
    )  # fmt: skip


def _again_after_its_answer(speakers: list[Caller], there: list[int], answered: list[int]) -> bool:
    """Each time but the first was said after the one before had its answer, by somebody who could not know that."""
    alone = len(speakers) == 1 and speakers[0].door == COMMAND and not speakers[0].key and speakers[0].cut_off
    between = zip(there, answered, there[1:], strict=False)
    return alone and len(there) == len(answered) and all(a < b < c for a, b, c in between)
