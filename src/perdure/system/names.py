"""Which names are accepted for sessions, owners, branches, tags and keys, and what their refusal says."""

from __future__ import annotations

from perdure.errors import InvalidInput, an
from perdure.model import ASIDE, INTERNAL

MAX_ID = 512
MAX_NAME = 200


def check_name(value: object, what: str, limit: int = MAX_NAME, *, empty: bool = False) -> str:
    """A name that every store can keep: text without NUL or lone surrogates, of bounded length.

    >>> check_name("a/../b", "session id", MAX_ID)
    'a/../b'
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{an(what)} is a string, not {an(type(value).__name__)}")
    if not value and not empty:
        raise InvalidInput(f"{an(what)} must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{an(what)} must not contain lone surrogates: {value[:40]!a}") from None
    if size > limit:
        raise InvalidInput(f"{an(what)} may have up to {limit} bytes, and this one has {size}: {value[:40]!a}…")
    if "\0" in value:
        raise InvalidInput(f"{an(what)} must not contain NUL: {value[:40]!a}")
    return value


def check_session(value: object) -> str:
    """A session id; those of sessions that are set aside are nobody's own."""
    name = check_name(value, "session id", MAX_ID)
    if name.startswith(ASIDE):
        raise InvalidInput(f"{name[:60]!a} has expired and is set aside: bring it back by its own id, with revive")
    return name


def check_own_session(value: object) -> str:
    """The id of a session that somebody may work in, and write to."""
    name = check_session(value)
    if name.startswith(INTERNAL):
        raise InvalidInput(
            f"{name[:60]!a} is a session of perdure's own: it holds the answer to a call that others share, and nobody "
            "else writes to it. Settle the call in the session that has made it; to have it made anew, delete this one"
        )
    return name


def check_owner(session: str, owner: str, claimed: str) -> None:
    """That a session is whose somebody claims it is; who claims nothing, or a session of nobody, passes."""
    if claimed and owner and claimed != owner:
        raise InvalidInput(f"session {session!r} belongs to another owner; nothing was written")


def check_branch(value: object) -> str:
    """A branch name; ``tags/`` is kept for tags, and "@" separates a session from a step in commands."""
    name = check_name(value, "branch name")
    if name.startswith("tags/") or "@" in name or name.isdigit():
        raise InvalidInput(f"a branch name must not start with 'tags/', contain '@' or be a number: {name[:40]!a}")
    return name


def check_lease(value: object) -> float:
    """Seconds a lease lives without being renewed."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= 86_400 * 365:
        raise InvalidInput(f"a lease lives for a number of seconds, at least a thousandth: {value!r:.40}")
    return value


def check_ttl(value: object) -> int | None:
    """Seconds a session lives after its last commit; None for ever."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"a TTL is a whole number of seconds, at least 1, or None for ever: {value!r:.40}")
    return value
