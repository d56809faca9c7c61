"""The customers of the night: who writes, what they say, what it must come to, and a supervisor who agrees.

Everything follows from the seed. A conversation has 15 to 30 turns; a turn is one answer of the model, as ``max_turns``
of an agent counts them: an answer that calls a tool is one, and what is then said to the customer is the next. Each
customer writes the next message once the last one was answered. They know only what anybody outside knows: they post
into inboxes and follow the store's list of changes.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.demo.shop import Order
from perdure.errors import ApprovalError, PerdureError
from perdure.fleet.board import board_of
from perdure.model import Status
from perdure.protocols import NewWork
from perdure.session.inbox import posted_all, seal_entry
from perdure.state.document import plain
from perdure.system.flow import drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.database import Database
    from perdure.history.checkpoint import Reading
    from perdure.model import Change

SHORTEST, LONGEST = 15, 30


class Article(NamedTuple):
    """Something the shop sells, in several kinds."""

    name: str
    code: str
    kinds: tuple[str, ...]
    cents: int


CATALOGUE = (
    Article("trail boots", "BOT", ("41", "42", "43", "44"), 12_990),
    Article("running shoes", "RUN", ("40", "41", "42", "43"), 11_900),
    Article("rain jacket", "JKT", ("S", "M", "L", "XL"), 8_990),
    Article("wool sweater", "SWT", ("S", "M", "L"), 6_950),
    Article("headphones", "HPH", ("BLACK", "WHITE", "RED"), 19_900),
    Article("kettle", "KTL", ("1L", "2L"), 4_590),
    Article("desk lamp", "LMP", ("BRASS", "BLACK"), 5_400),
    Article("backpack", "BPK", ("20L", "30L"), 7_900),
    Article("espresso machine", "ESP", ("STEEL", "BLACK"), 34_900),
    Article("standing desk", "DSK", ("OAK", "WHITE"), 42_900),
)
NAMES = ("Ana", "Ben", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Ines", "Jun", "Kofi", "Lena", "Mara", "Nils")
CARRIERS = ("Northway", "ParcelOne", "Swift Post")
UNDER_WAY, DELIVERED = ("packed", "shipped", "in transit", "out for delivery"), ("delivered",)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
REASONS = (
    "it arrived with a scratch", "it does not fit", "it came two days late", "I ordered the wrong one",
    "it looks nothing like the photo", "somebody gave me the same one",
)  # fmt: skip
TALK = (
    "Is your Black Friday sale still on tonight? The page says it ends at midnight and it is well past that here.",
    "You are up late as well, I suppose. I only wanted to settle this before the weekend is over.",
    "Does the warranty begin on the day I ordered or on the day it was delivered?",
    "Could you tell me whether gift wrapping is possible for the next order? It is for my mother.",
    "I have written to you twice by mail this week and nobody answered. Just so that you know.",
    "Do I need the original box if I ever want to send something back to you?",
    "How long do you keep my address, by the way? I moved in September.",
    "My neighbour had the very same trouble last year, and you were quick then, so thank you.",
    "Can I collect a parcel myself instead of waiting for the courier at home?",
    "One more question: do vouchers work together with the sale prices?",
    "The confirmation mail went to my old address, I think. That is fine, I can still read it.",
    "Sorry, I was away from the keyboard for a minute. I am back now.",
)
YES = ("Yes, please do that.", "Yes, go ahead.", "Yes, that is what I want.", "Yes. Thank you.")
THANKS = (
    "That is all for tonight, thank you very much.",
    "Great, that is all I needed. Good night.",
    "Perfect, that is all. Thanks for your help.",
)


class Conversation(NamedTuple):
    """One customer's night: what they write, in order, and what it must come to."""

    session: str
    owner: str
    lines: tuple[str, ...]
    turns: int
    orders: tuple[Order, ...]
    refunds: tuple[tuple[str, int], ...]
    """Order and cents."""
    exchanges: tuple[tuple[str, str], ...]
    """Order and the article to be sent."""


class Night(NamedTuple):
    """All conversations, and what is in stock when they begin."""

    conversations: tuple[Conversation, ...]
    stock: dict[str, int]

    @property
    def messages(self) -> int:
        """Messages that customers write."""
        return sum(len(c.lines) for c in self.conversations)


def night(seed: int, sessions: int, prefix: str = "bf") -> Night:
    """Plan a night.

    >>> plan = night(847, 3)
    >>> [c.session for c in plan.conversations], plan == night(847, 3)
    (['bf-001', 'bf-002', 'bf-003'], True)
    """
    width = max(3, len(str(sessions)))
    every = tuple(_Writing(seed, n, f"{prefix}-{n:0{width}}").done() for n in range(1, sessions + 1))
    chance = random.Random(f"{seed}/stock")
    stock = {f"{a.code}-{kind}": chance.randint(3, 60) for a in CATALOGUE for kind in a.kinds}
    for conversation in every:
        for _, sku in conversation.exchanges:
            stock[sku] += 1
    return Night(every, stock)


class _Writing:
    """One conversation while it is written."""

    def __init__(self, seed: int, number: int, session: str) -> None:
        self._chance = random.Random(f"{seed}/{number}")
        self._session = session
        self._owner = f"user-{12_000 + number}"
        self._name = self._chance.choice(NAMES)
        self._lines: list[str] = []
        self._refunds: list[tuple[str, int]] = []
        self._exchanges: list[tuple[str, str]] = []
        orders = [self._order(f"ORD-2024-{number * 10 + k}", UNDER_WAY) for k in range(self._chance.randint(1, 2))]
        self._under_way = orders
        self._open = [self._order(f"ORD-2024-{number * 10 + 5 + k}", DELIVERED) for k in range(4)]
        """Orders that have arrived and were neither given back nor exchanged."""
        self._orders = [*orders, *self._open]
        self._talk = self._chance.sample(TALK, len(TALK))

    def _order(self, number: str, statuses: tuple[str, ...]) -> Order:
        pick = self._chance.choice
        article = pick(CATALOGUE)
        sku = f"{article.code}-{pick(article.kinds)}"
        return Order(number, self._owner, sku, article.cents, pick(statuses), pick(CARRIERS), pick(DAYS))

    def done(self) -> Conversation:
        """Write it."""
        turns = self._chance.randint(SHORTEST, LONGEST)
        left = turns - self._status(hello=True) - 1
        left -= self._refund() if self._chance.random() < 0.7 else self._exchange()
        while left:
            # What it may be, by the turns it takes; what needs an order that is still open comes while there is one.
            some = [self._talk_on, self._when, self._when] if left < 2 else [self._talk_on, self._status, self._stock]
            if left >= 4 and self._open:
                some += [self._refund, self._exchange]
            left -= self._chance.choice(some)()
        self._lines.append(self._chance.choice(THANKS))
        return Conversation(
            self._session, self._owner, tuple(self._lines), turns, tuple(self._orders), tuple(self._refunds),
            tuple(self._exchanges),
        )  # fmt: skip

    def _say(self, text: str, turns: int) -> int:
        self._lines.append(text)
        return turns

    def _status(self, hello: bool = False) -> int:
        order = self._chance.choice(self._under_way)
        hi = f"Hello, this is {self._name}. " if hello else ""
        return self._say(f"{hi}Where is my order {order.id}? I paid for it last week.", 2)

    def _when(self) -> int:
        return self._say("And when will it arrive, do you think? I am at home in the afternoons only.", 1)

    def _stock(self) -> int:
        article = self._chance.choice(CATALOGUE)
        sku = f"{article.code}-{self._chance.choice(article.kinds)}"
        return self._say(f"Do you still have the {article.name} {sku} in stock? I might buy one more.", 2)

    def _talk_on(self) -> int:
        return self._say(self._talk.pop(), 1) if self._talk else self._when()

    def _refund(self) -> int:
        order = self._taken()
        self._refunds.append((order.id, order.cents))
        reason = self._chance.choice(REASONS)
        return self._say(f"I would like a refund for {order.id}: {reason}.", 2) + self._agree()

    def _exchange(self) -> int:
        order = self._taken()
        code, _, mine = order.sku.partition("-")
        kinds = next(a.kinds for a in CATALOGUE if a.code == code)
        other = f"{code}-{self._chance.choice([k for k in kinds if k != mine])}"
        self._exchanges.append((order.id, other))
        return self._say(f"Can I exchange {order.id} for {other}, please? I have not used it.", 2) + self._agree()

    def _agree(self) -> int:
        return self._say(self._chance.choice(YES), 2)

    def _taken(self) -> Order:
        return self._open.pop(self._chance.randrange(len(self._open)))


POLL = 0.02
FEW = 2


class Talk:
    """A conversation as its customer sees it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.said = 0
        """Messages that were posted."""
        self.answered = 0
        self.commits: list[Change] = []

    @property
    def finished(self) -> bool:
        """Whether everything was said and answered."""
        return self.answered == len(self.conversation.lines)

    @property
    def open(self) -> bool:
        """Whether a message waits for its answer."""
        return self.said > self.answered


class Crowd:
    """All customers; ``at_once`` of them wait for an answer at the same time, the others are still thinking."""

    def __init__(
        self, db: Database, night: Night, agent: str, at_once: int, patient: Callable[[], bool] = lambda: False
    ) -> None:
        self._db = db
        self._agent = agent
        self._at_once = at_once
        self._patient = patient
        """Whether only few of them write at the moment: what is to go wrong must find something to interrupt."""
        self._board = board_of(db)
        self._pages = db.watch_pages(poll=POLL)
        self.talks = {c.session: Talk(c) for c in night.conversations}
        self._ready = deque(self.talks.values())
        self.total = night.messages
        self.posted = 0
        self.answered = 0
        self.finished = 0
        self.open = 0
        self.asking: set[str] = set()
        """Sessions that wait for the supervisor."""
        self.approved = 0
        self.commits = 0
        self.moved = time.monotonic()
        """When a commit was last seen."""

    def arrive(self) -> None:
        """Open every conversation, before anybody has said anything."""
        for talk in self.talks.values():
            self._db.create(talk.conversation.session, agent=self._agent, owner=talk.conversation.owner)

    # -- the loop -------------------------------------------------------------------------------------------------

    def play(self, patience: float, stop: Callable[[], bool]) -> None:
        """Talk until every conversation has ended, nothing has moved for ``patience`` seconds, or it must stop."""
        while not stop() and self.finished < len(self.talks):
            self.listen()
            self.speak()
            self.agree()
            if time.monotonic() - self.moved > patience:
                return

    def listen(self) -> int:
        """Read the next page of changes, after a moment where the last one was empty; how many there were."""
        page = next(self._pages)
        for change in page.items:
            self._note(change)
        return len(page.items)

    def _note(self, change: Change) -> None:
        talk = self.talks.get(change.session)
        if talk is None or (talk.commits and change.step <= talk.commits[-1].step):
            # Somebody else's, or told a second time.
            return
        self.commits += 1
        self.moved = time.monotonic()
        talk.commits.append(change)
        self.asking.discard(change.session)
        # The first step only makes the session, and says who its agent is.
        if change.status == Status.IDLE and talk.open and change.step > 1:
            talk.answered += 1
            self.answered += 1
            self.open -= 1
            if talk.finished:
                self.finished += 1
            else:
                self._ready.append(talk)
        elif change.status == Status.WAITING_APPROVAL:
            self.asking.add(change.session)

    def speak(self) -> None:
        """Let customers write who have something to say, as many as may wait at once."""
        most = max(FEW, self._at_once // 24) if self._patient() else self._at_once
        room = min(len(self._ready), most - self.open)
        if room > 0:
            self._post([self._ready.popleft() for _ in range(room)])

    def _post(self, talks: list[Talk]) -> None:
        """Put the next message of each into its inbox, all in one transaction: the first one also onto the board.

        It is what :func:`perdure.fleet.board.submit` does for one session.
        """
        kernel = self._db.kernel
        said = [(t.conversation.session, f"m{t.said:02}", t.conversation.lines[t.said]) for t in talks]
        entries = [seal_entry(kernel, session, key, "message", text) for session, key, text in said]
        for answer in drive(kernel.store, posted_all(kernel, entries)):
            if isinstance(answer, PerdureError):
                raise answer
        new = [NewWork(t.conversation.session, self._agent, t.conversation.owner) for t in talks if not t.said]
        if new:
            self._board.put(new)
        for talk in talks:
            talk.said += 1
        self.posted += len(talks)
        self.open += len(talks)

    def agree(self) -> None:
        """The supervisor agrees to what is asked for, session by session."""
        for session in list(self.asking):
            for approval in asked_for(self._db.read(session)):
                try:
                    self._db.approve(session, approval, by="supervisor", reason="the customer is right")
                except ApprovalError:
                    # A worker was quicker to find that it was decided already.
                    continue
                self.approved += 1
            self.asking.discard(session)


def asked_for(reading: Reading) -> list[str]:
    """The ids of requests for approval that nobody has decided."""
    requests: dict[str, Any] = plain(reading.book.get("approvals", {}))
    return [name for name, request in requests.items() if request["status"] == "pending"]
