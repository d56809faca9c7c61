"""The same store with one fault planted in each: what an outsider forgets, and the test of the kit that says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.errors import PerdureError
from perdure.model import Append, Head, InboxEntry, Landed, Lease, Outrun, Rewrite
from tests.testing.third_party.json_store import Document, JsonStore, Record, Transaction


class NoCompareAndSwap(JsonStore):
    """Writes on whatever head there is."""

    def _moved(self, item: Append, head: Head | None) -> bool:
        return False


class NoFencing(JsonStore):
    """Lets a writer write whose lease was taken."""

    def _fenced(self, session: str, token: int | None, document: Document) -> PerdureError | None:
        return None


class NotIdempotent(JsonStore):
    """Does not know its own commits again."""

    def _landed(self, item: Append, there: Record | None) -> Landed | PerdureError | None:
        return None


class LosesInbox(JsonStore):
    """Takes all that waits when a commit takes one."""

    def _take(self, document: Document, item: Append) -> None:
        if item.takes:
            document.inbox.clear()


class ForgetsKeys(JsonStore):
    """Forgets an entry's key once it was taken, so that it can be posted again."""

    def _take(self, document: Document, item: Append) -> None:
        for key in item.takes:
            del document.inbox[key]


class TokensRestart(JsonStore):
    """Hands out the same tokens again after it was opened anew."""

    _tokens = 0

    def _new_token(self, t: Transaction) -> int:
        self._tokens += 1
        return self._tokens


class FailsTogether(JsonStore):
    """Lets one refused commit of a batch refuse them all."""

    def append(self, batch: Sequence[Append]) -> list[Landed | PerdureError]:
        answers: list[Landed | PerdureError] = []
        with self._inside() as t:
            for item in batch:
                answers.append(self._append(t, item))
            t.save_numbers()
        refused = next((answer for answer in answers if isinstance(answer, PerdureError)), None)
        return answers if refused is None else [refused] * len(answers)


class HalfDone(JsonStore):
    """Thins the rows that are there and leaves out those that are not."""

    def _applies(self, found: Document, change: Rewrite) -> bool:
        return True


class LosesChanges(JsonStore):
    """Does not tell a follower of changes that were deleted before it read them."""

    def _forget(self, t: Transaction, records: list[Record]) -> None:
        return


class ReleasesForOthers(JsonStore):
    """Gives the lease back whoever asks."""

    def release(self, lease: Lease) -> None:
        current = self.look(lease.session)
        if current is not None:
            super().release(lease._replace(token=current.lease.token))


class KeepsInMemory(JsonStore):
    """Keeps posted entries in the handle, and nowhere else."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._posted: dict[tuple[str, str], InboxEntry] = {}
        super().__init__(path, **options)

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        self._posted |= {(entry.session, entry.key): entry for entry in entries}
        return [True] * len(entries)

    def inbox(self, session: str, limit: int = 100, key: str | None = None) -> list[InboxEntry]:
        return [e for (s, k), e in self._posted.items() if s == session and key in (None, k)][:limit]


class NumbersRestart(JsonStore):
    """Counts the inputs of a session anew after it has ended."""

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        with self._inside() as t:
            for entry in entries:
                document = t.get(entry.session)
                if document is not None and document.reason:
                    document.posts = len(document.inbox)
                    t.put(entry.session, document)
        return super().post(entries)


class IgnoresNumbers(JsonStore):
    """Gives an input the next number, whatever its poster has sealed it with."""

    def post(self, entries: Sequence[InboxEntry]) -> list[bool | Outrun | PerdureError]:
        return super().post([entry._replace(seq=0) for entry in entries])


CAUGHT_BY = {
    NumbersRestart: "test_numbers_go_on_when_a_session_ends_and_begins_anew",
    IgnoresNumbers: "test_whoever_names_another_number_than_the_next_is_told_and_writes_nothing",
    NoCompareAndSwap: "test_a_commit_builds_on_the_head_it_names",
    NoFencing: "test_a_writer_whose_lease_was_taken_cannot_write",
    NotIdempotent: "test_the_same_commit_again_has_landed_already",
    LosesInbox: "test_a_commit_takes_the_entries_it_answers",
    ForgetsKeys: "test_the_key_of_a_taken_entry_goes_on_being_known",
    TokensRestart: "test_tokens_grow_across_sessions_releases_and_handles",
    FailsTogether: "test_one_conflict_in_a_batch_fails_nobody_else",
    HalfDone: "test_nothing_at_all_is_done_when_a_row_to_thin_is_missing_or_thin",
    LosesChanges: "test_a_follower_that_missed_dropped_changes_is_told",
    ReleasesForOthers: "test_giving_back_a_lost_lease_takes_nothing_from_the_new_holder",
    KeepsInMemory: "test_entries_wait_in_order_of_arrival_and_outlive_the_handle",
}
"""Which test of the contract says in its name what is wrong."""
