"""What is stored where, and how far it can be believed.

The table in columns.md is written from this, and a test compares it with what the stores really hold. A new column
needs an entry here.
"""

# ruff: noqa: E501 - one entry is one line of the table
from __future__ import annotations

from typing import NamedTuple

READ = "covered on read"
VERIFY = "covered by verify"
HINT = "a hint only"


class Entry(NamedTuple):
    """Some fields of some places that are covered alike."""

    places: str
    """Such as "sqlite:commits postgres:perdure_row"."""
    fields: str
    level: str
    why: str

    def each(self) -> set[tuple[str, str, str]]:
        """Store, place and field, one by one."""
        named = [place.split(":", 1) for place in self.places.split()]
        return {(store, place, field) for store, place in named for field in self.fields.split()}


_ROWS = "sqlite:commits postgres:perdure_row file:Commit"
_SESSIONS = "sqlite:sessions postgres:perdure_session redis:s memory:Session"
_INBOXES = "sqlite:inbox postgres:perdure_inbox file:Posted"

ENTRIES = [
    # -- checkpoints
    Entry(_ROWS, "line step id digest envelope payload", READ, "The tag before the payload covers the store's id, the envelope and the sealed bytes, and is checked before anything is inflated; the digest covers envelope, contents and the chain before it; line, step and id are compared with the envelope."),
    Entry("memory:Record", "row", READ, "As the columns of a row in SQLite."),
    Entry("redis:r", "value", READ, "A row's id, digest, envelope and payload are covered as in SQLite; what is projected beside them is covered by verify, and the number of its change is a hint."),
    Entry(_ROWS, "branch kind status at starts tool error takes blobs", VERIFY, "Projections of the envelope. What a load decides with them (which row starts a line, and of which branch) is compared with the envelope then and there."),
    Entry("memory:Record", "shown", VERIFY, "Projections of the envelope."),
    Entry("redis:l", "value", VERIFY, "Where each line starts, and of which branch: compared with the envelope of that row whenever a head is looked for."),
    Entry("postgres:perdure_row", "run effect approval", HINT, "For views and queries; the library decides on the envelope."),
    Entry("sqlite:commits postgres:perdure_row", "no", READ, "Which session it belongs to: the envelope says the session, too."),
    Entry("sqlite:commits postgres:perdure_row memory:Record", "seq", HINT, "The order of the list of changes, which is a hint to look."),
    Entry("postgres:perdure_row", "pos xid", HINT, "As seq: where a cursor of the list of changes goes on."),
    Entry("redis:changes", "session branch line step id kind status at", HINT, "The list of changes: whoever follows it reads the session itself."),
    Entry("memory:Room", "log newest trimmed", HINT, "The list of changes."),
    Entry("file:Commit", "ordinal wall ttl", HINT, "The order of changes, and the store's time, from which the session's end is counted."),
    Entry("file:Commit", "token", VERIFY, "Of the lease it was written under, as the payload says, too."),
    Entry("file:Commit", "owner agent label", VERIFY, "They add up to the session's owner, agent and label, which verify compares."),
    # -- sessions
    Entry("sqlite:sessions postgres:perdure_session", "id no", READ, "Everything of a session says the session's id inside its seal."),
    Entry("sqlite:sessions postgres:perdure_session", "line step head", READ, "The head of main: it must be the end of the newest line that was ever started under this name."),
    Entry("sqlite:branches postgres:perdure_branch", "no name line step head", READ, "Heads of other branches, as that of main. Taking off a branch's newest checkpoints and moving its head back is seen by a witness only."),
    Entry("redis:s", "h:*", READ, "Heads of branches, as in SQLite."),
    Entry("redis:s", "t:*", READ, "The end of each line: a load that does not reach it, or goes past it, fails."),
    Entry("memory:Session", "heads rows", READ, "Heads and rows, as in SQLite."),
    Entry("file:State", "heads lines", READ, "Heads, as in SQLite; the number of lines is compared by verify."),
    Entry(_SESSIONS + " file:State", "owner", VERIFY, "Must be what the newest checkpoint says. Until then it decides whose list shows the session, and which owner is told that it is not his."),
    Entry(_SESSIONS + " file:State", "agent status error label", VERIFY, "Must be what main's newest checkpoints say; a worker opens the session, and decides on that."),
    Entry(_SESSIONS + " file:State", "expires", VERIFY, "Must be missing, or not, as the newest checkpoint's TTL is, and differ from its time and TTL by no more than a day, or be over like it. Sweeping looks at the checkpoint's own time, too. Of a session that was set aside it says when it is deleted for good, which is a hint."),
    Entry("sqlite:sessions postgres:perdure_session redis:s memory:Session", "lines", VERIFY, "All lines below this number must be there. A larger one only makes the next line's number larger."),
    Entry(_SESSIONS + " file:State", "posts", VERIFY, "The newest number of an input: all numbers up to it that no checkpoint took must be there. A smaller one is refused as soon as somebody posts; with the newest inputs gone, too, only a witness sees it."),
    Entry(_SESSIONS + " file:State", "reason", READ, "Makes a session a tombstone, and carries the signature of whoever ended it. One that was put back after the session had begun anew, and a session removed without one, are seen by a witness only."),
    Entry(_SESSIONS + " file:State", "created updated", HINT, "Times for lists."),
    Entry("sqlite:sessions", "holder token until span boot", HINT, "Who may write now. Whoever forges a lease keeps writers out, or lets two in: then one wins each head, and nothing is lost or believed that was not committed. Each row's tag covers the token it was written under: verify reports a smaller one after a larger one, and a session whose token is smaller than its rows'."),
    Entry("postgres:perdure_session", "holder token until span claim", HINT, "The lease, as in SQLite; claim names the last call, so that sent twice it is done once."),
    Entry("redis:s", "holder token until span op did", HINT, "The lease, as in SQLite; op and did name the last calls, so that sent twice they are done once."),
    Entry("memory:Session", "lease", HINT, "The lease, as in SQLite."),
    Entry("file:State", "token", HINT, "The last token when the log was rewritten."),
    Entry("file:lease", "file", HINT, "The lease, as in SQLite, with a checksum."),
    Entry("postgres:perdure_session", "pos rows bytes", HINT, "Where its newest change stands, and sizes for views."),
    Entry("redis:s", "seq floor due rows bytes long gaps base", HINT, "Where its newest change stands, sizes, and what spares looking for rows that are not there; a load still verifies what it finds."),
    Entry("file:State", "ordinal trimmed", HINT, "The order of the list of changes."),
    Entry("redis:ids redis:owner redis:status redis:expiry redis:ended", "value", HINT, "Indexes of lists and sweeps: each session found by them is looked at anew. One that is missing there is missing in lists; a witness sees it."),
    # -- artifacts
    Entry("sqlite:artifacts postgres:perdure_artifact", "no kind line lo hi refs blobs body", READ, "The tag in the body covers the store's id, the session, all columns and the sealed bytes, and is checked before anything is inflated. The note of agent and time to live beside a session that was set aside has none: verify compares it with the checkpoints."),
    Entry("redis:a", "value", READ, "As an artifact in SQLite."),
    Entry("memory:Session", "artifacts", READ, "As an artifact in SQLite."),
    Entry("file:Rewritten", "put", READ, "As an artifact in SQLite."),
    Entry("file:Rewritten", "thin drop discard", READ, "What became of rows and artifacts: a row that is missing, or whose contents are, makes the load fail."),
    Entry("redis:x", "value", READ, "The index of artifacts: what is missing there is missing in the load, which fails or reads rows instead."),
    # -- inputs
    Entry("sqlite:inbox postgres:perdure_inbox", "no", READ, "Which session it is for: the tag covers the session."),
    Entry(_INBOXES, "seq key kind at digest body", READ, "While it waits: the tag in the body covers the store's id, the session, key, kind, time, the number where it was posted, the digest and the sealed bytes. An entry that a checkpoint took is refused, and so is one out of order. Of one that was taken, key and digest go on saying what was posted before: a hint."),
    Entry(_INBOXES, "taken", VERIFY, "Must name a checkpoint that took it; taken off, the entry is refused on read. Put on, the input waits no more: verify and a witness report it."),
    Entry("memory:Session", "inbox", READ, "As the inbox in SQLite."),
    Entry("redis:i", "value", READ, "As the inbox in SQLite."),
    Entry("redis:w", "value", VERIFY, "Which inputs wait: one that was taken is refused; one that is missing is reported as taken by nobody."),
    # -- blobs
    Entry("postgres:perdure_blob", "ref size body", READ, "A blob's name is the hash of its content, and a checkpoint names it."),
    Entry("postgres:perdure_blob", "renewed", HINT, "When it was last put: decides when collection may take one that nothing names."),
    Entry("redis:blob", "value", READ, "A blob's name is the hash of its content."),
    Entry("redis:blobs", "value", HINT, "When each blob was last put."),
    Entry("redis:b", "value", VERIFY, "The blobs that rows and artifacts name, for collection; the rows themselves are compared with their envelopes."),
    # -- the store itself
    Entry("sqlite:meta postgres:perdure_meta redis:meta file:perdure.json memory:Room", "id", READ, "What every tag covers: under another id nothing here can be read. A whole store in the place of another is seen by a witness, which names the store."),
    Entry("sqlite:meta postgres:perdure_meta redis:meta file:perdure.json memory:Room", "epoch", HINT, "Changes when the past may have changed, so that cursors expire."),
    Entry("sqlite:meta redis:meta memory:Room", "token", HINT, "The counter of lease tokens. A smaller one gives leases that verify reports, by the tokens of the rows. In SQLite, the largest number there is leaves none to give: whoever wants to write gets `Corrupted`, and all can be read."),
    Entry("file:token", "file", HINT, "The counter of lease tokens, in two slots with checksums."),
    Entry("sqlite:meta redis:meta postgres:perdure_meta", "trimmed", HINT, "The newest change that was dropped, for cursors."),
    Entry("postgres:perdure_trimmed", "xid pos seq", HINT, "Changes that were dropped, for cursors."),
    Entry("postgres:perdure_garbage", "no line lo hi", HINT, "Rows that are being deleted. Whoever writes here deletes rows, which loads and verify notice."),
    Entry("sqlite:meta", "schema board", HINT, "Versions of the tables."),
    Entry("sqlite:meta memory:Room", "clock", HINT, "When this boot was, by the wall clock of its first process: it can only delay what expires."),
    Entry("file:clock", "file", HINT, "As clock in SQLite."),
    Entry("postgres:perdure_meta", "one version cluster timeline", HINT, "The version of the tables, and which server wrote last: a promoted one gets a new epoch."),
    Entry("redis:meta", "format fence life process", HINT, "The version, the last token of an earlier epoch, and which server process wrote last."),
    Entry("file:perdure.json", "perdure format check", HINT, "What the folder is, its version, and a checksum."),
    Entry("file:lock", "file", HINT, "Locked while somebody makes the store."),
    Entry("file:Birth", "format session generation created durable", READ, "The beginning of a log: the session is compared with the one that is asked for; the rest only says how the log is read."),
    Entry("memory:Room", "lock sessions said", HINT, "The store itself, and pieces of answers on their way."),
    Entry("postgres:perdure_live", "no session body", READ, "Pieces of answers on their way, with digests of their own; provisional in any case."),
    Entry("redis:live", "p", READ, "Pieces of answers on their way, with digests of their own; provisional in any case."),
    # -- the cache before a store
    Entry("tiered:state", "value", READ, "A state that was read before, sealed as an artifact. What does not verify is asked for again behind the cache."),
    Entry("tiered:rows", "value", READ, "Rows that were committed, as they lie in the store."),
    Entry("tiered:heads", "value", HINT, "Which line a branch is on, for reading while the store cannot be reached."),
    # -- the board of a fleet
    Entry("sqlite:fleet_work postgres:perdure_fleet_work", "session agent owner", VERIFY, "Who is to work on a session, and whose turn it is. A worker opens the session; of one that nobody works on and nobody queued, verify compares agent and owner with its checkpoints."),
    Entry("sqlite:fleet_work", "no", HINT, "The session's number, by which what waits for it in an inbox is found. Whoever forges it delays work."),
    Entry("sqlite:fleet_work postgres:perdure_fleet_work", "rank due since step priority tries touched paused worker avoid_version parked", HINT, "The queue. A claim is no right to write: the lease is. Whoever forges it delays work, or has a session looked at once more."),
    Entry("postgres:perdure_fleet_work", "turn claim", HINT, "The order among equals, and the call that claimed it."),
    Entry("sqlite:fleet_place", "one reached", HINT, "Where the queue has come to."),
    Entry("postgres:perdure_fleet_place", "priority reached", HINT, "Where the queue has come to."),
    Entry("sqlite:fleet_workers", "boot", HINT, "The boot whose clock counts."),
    Entry("sqlite:fleet_workers postgres:perdure_fleet_worker", "id host pid version agents concurrency busy started done recovered wish seen", HINT, "Workers, as they say themselves, and what is wished of them."),
    Entry("sqlite:fleet_holds postgres:perdure_fleet_held", "agent", HINT, "Agents whose sessions no worker takes."),
    Entry("sqlite:fleet_slots postgres:perdure_fleet_slot", "name holder until", HINT, "Places that limit how much happens at once."),
    Entry("sqlite:fleet_slots", "boot", HINT, "The boot whose clock counts."),
    Entry("postgres:perdure_fleet_meta", "one version", HINT, "The version of the board's tables."),
]  # fmt: skip


def table() -> str:
    """All of it, for people to read."""
    lines = ["| where | what | how far | |", "|---|---|---|---|"]
    for entry in ENTRIES:
        where = "<br>".join(f"{store} `{place}`" for store, place in (p.split(":", 1) for p in entry.places.split()))
        fields = ", ".join(f"`{field}`" for field in entry.fields.split())
        lines.append(f"| {where} | {fields} | {entry.level} | {entry.why} |")
    return "\n".join(lines) + "\n"
