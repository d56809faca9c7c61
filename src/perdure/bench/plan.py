"""What is measured with: the sizes of all measurements, and the messages that every one of them writes.

There is a full run, whose figures count, and a quick one that only shows that everything works. Messages are about 1 KB
each, made from a fixed seed, the same on every machine: text follows a Zipf-like distribution over a vocabulary with
collocations, roles take turns, and now and then there is a tool call with its result. How well all of it compresses is
printed beside every figure.
"""

from __future__ import annotations

import json
import random
from itertools import accumulate
from typing import Any, NamedTuple

SEED = 20_241_129
SIZE = 1024
"""Bytes a message aims at, as JSON."""

_COMMON = """
the of and to a in is that for it you was on with as are be this have from or at by not we can your an will if our
which their has all there would but they one about been when more so out up some what time no my into them than its
only other new could these two may then do first any over also like how such after most made where please order
hotel flight price night week refund booking city train budget trip date room card payment
"""
_ONSETS = "b br c ch cl d dr f fl g gr h j k l m n p pl pr qu r s sh sl st str t th tr v w"
_VOWELS = "a e i o u ai ea ee io ou"
_CODAS = ["", "", "", "n", "r", "s", "t", "l", "nd", "st", "ng", "m", "ck", "ss"]
_ENDINGS = ["", "", "", "ing", "ed", "er", "tion", "ly", "ment", "s", "able"]
_TOOLS = {
    "search_hotels": ("city", "check_in", "nights", "max_price"),
    "search_flights": ("origin", "destination", "date", "passengers"),
    "lookup_order": ("order_id", "include_items"),
    "refund": ("order_id", "amount", "reason"),
    "get_weather": ("city", "date"),
}


class Conversation:
    """An endless conversation from one seed."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._parts = _ONSETS.split(), _VOWELS.split()
        self._words = list(dict.fromkeys([*_COMMON.split(), *(self._word() for _ in range(6000))]))
        weights = [1 / (rank + 5) ** 0.92 for rank in range(len(self._words))]
        self._weights = list(accumulate(weights))
        # What tends to follow a word: a few words of its own, as in real text.
        self._next = [self._draw(6) for _ in self._words]
        self._call: tuple[str, str] | None = None
        self._turn = 0

    def _word(self) -> str:
        pick = self._random.choice
        onsets, vowels = self._parts
        body = "".join(pick(onsets) + pick(vowels) + pick(_CODAS) for _ in range(self._random.choice((1, 1, 2))))
        return body + pick(_ENDINGS)

    def _draw(self, n: int) -> list[int]:
        return self._random.choices(range(len(self._words)), cum_weights=self._weights, k=n)

    def _text(self, size: int) -> str:
        """Sentences of about that many characters."""
        r = self._random
        out: list[str] = []
        length, left, word = 0, 0, 0
        for fresh in self._draw(size // 4 + 8):
            word = self._next[word][min(5, int(r.expovariate(0.8)))] if r.random() < 0.25 else fresh
            text = self._words[word]
            if left == 0:
                left = r.randint(5, 18)
                text = text.capitalize()
            left -= 1
            if left == 0:
                text += r.choice((".", ".", ".", "?", "!", ".\n"))
            elif r.random() < 0.07:
                text += ","
            elif r.random() < 0.02:
                text = str(r.randint(1, 9999))
            out.append(text)
            length += len(text) + 1
            if length >= size:
                break
        return " ".join(out)

    def _argument(self, name: str) -> Any:
        r = self._random
        if name.endswith("id"):
            return f"ORD-2024-{r.randint(1000, 9999)}"
        if name in ("date", "check_in"):
            return f"2024-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
        if name in ("nights", "passengers", "max_price", "amount"):
            return r.randint(1, 900)
        return True if name.startswith("include") else self._words[self._draw(1)[0]].capitalize()

    def _call_message(self, size: int) -> dict[str, Any]:
        r = self._random
        name = r.choice(list(_TOOLS))
        self._call = (f"call_{r.getrandbits(96):024x}", name)
        arguments = json.dumps({a: self._argument(a) for a in _TOOLS[name]})
        call = {"id": self._call[0], "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": self._text(size - 260), "tool_calls": [call]}

    def _result_message(self, size: int, call: tuple[str, str]) -> dict[str, Any]:
        r = self._random
        rows: list[dict[str, Any]] = []
        for _ in range(max(1, (size - 180) // 150)):
            rows.append(
                {
                    "id": f"{r.getrandbits(40):010x}",
                    "name": self._text(24).strip(" .\n"),
                    "price": r.randint(40, 90_000),
                    "stars": r.randint(1, 5),
                    "rating": round(r.uniform(5, 10), 1),
                    "refundable": r.random() < 0.4,
                }
            )
        self._call = None
        content = json.dumps({"results": rows, "total": r.randint(1, 400)})
        return {"role": "tool", "tool_call_id": call[0], "name": call[1], "content": content}

    def next(self) -> dict[str, Any]:
        """The next message."""
        r = self._random
        size = max(300, int(r.gauss(SIZE, SIZE / 5)))
        if self._call is not None:
            return self._result_message(size, self._call)
        self._turn += 1
        if self._turn % 2:
            return {"role": "user", "content": self._text(size - 45)}
        if r.random() < 0.25:
            return self._call_message(size)
        return {"role": "assistant", "content": self._text(size - 50)}


def make_messages(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """The first messages of a conversation.

    >>> make_messages(2)[1]["role"], make_messages(3) == make_messages(4)[:3]
    ('assistant', True)
    """
    conversation = Conversation(seed)
    return [conversation.next() for _ in range(count)]


def raw_bytes(messages: list[dict[str, Any]]) -> int:
    """Bytes of the messages as JSON, one by one."""
    return sum(len(json.dumps(m).encode()) for m in messages)


def zstd_ratio(messages: list[dict[str, Any]]) -> float:
    """What zstd -3 makes of all messages in one JSON file."""
    import zstandard

    data = json.dumps(messages).encode()
    return len(zstandard.ZstdCompressor(level=3).compress(data)) / len(data)


class Plan(NamedTuple):
    """Sizes of all measurements."""

    name: str = "full"
    saves: int = 4_200
    """Saves of each side; the first ``warm`` fill SQLite's log once and are shown apart."""
    warm: int = 1_200
    block: int = 100
    """Saves whose medians are compared."""
    steps: int = 10_000
    early: int = 500
    """Where the early stretch of the long session begins."""
    window: int = 2_000
    session: int = 1_000
    """Messages of the session that is stored, loaded and resumed."""
    loads: int = 25
    picks: int = 25
    """Random steps that are opened."""
    sessions: int = 100
    each: int = 30
    """Saves of every session of the fleet."""
    fleets: int = 5
    colds: int = 9
    """Processes started of each kind."""

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The first messages of the fixed conversation."""
        while len(_made) < count:
            _made.extend(make_messages(max(count, 1_000))[len(_made) :])
        return _made[:count]


_made: list[dict[str, Any]] = []

FULL = Plan()
QUICK = Plan(
    name="quick",
    saves=40,
    warm=10,
    block=10,
    steps=200,
    early=20,
    window=80,
    session=100,
    loads=3,
    picks=3,
    sessions=10,
    each=5,
    fleets=1,
    colds=1,
)
