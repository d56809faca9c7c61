"""Which version of a model a provider answers with, and that it has become another one.

A name stays while what is behind it changes: an answer tells the exact version, and a fingerprint of the system that
made it. A session keeps the last of each model it asked, so that whoever goes on with it, or compares two of its
moments, is told.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# A session's notes are any JSON: their types are looked at, not declared.
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.agent.models.named import provider_of
from perdure.agent.requests import AGENT
from perdure.state.document import plain

if TYPE_CHECKING:
    from perdure.agent.models import Answer, ChatModel

_KEPT = "versions"
MOST = 20
"""Models whose versions a session keeps, the newest."""
FIELDS = ("version", "fingerprint")


class VersionChange(NamedTuple):
    """A model that answers as another version, or from another system, than before."""

    model: str
    """Its name, after its provider's where that is known."""
    what: str
    """version or fingerprint"""
    before: str
    after: str
    step: int | None = None
    """The first step that says so, where that is known."""

    def __str__(self) -> str:
        at = "" if self.step is None else f"step {self.step}: "
        return f"{at}the provider's {self.what} of {self.model} was {self.before!r:.80} and is {self.after!r:.80}"


def name_of(model: ChatModel) -> str:
    """A model's name, after its provider's where that is known."""
    provider = provider_of(model)
    return f"{provider}/{model.name}" if provider else model.name


def note_version(notes: Any, model: str, answer: Answer) -> list[VersionChange]:
    """Keep which version of a model has answered; what has changed since it last did."""
    kept = notes.setdefault(_KEPT, {})
    was = plain(kept.get(model)) or {}
    now = {**was, **version_in(answer)}
    if now == was:
        return []
    if model not in kept and len(kept) >= MOST:
        del kept[next(iter(kept))]
    kept[model] = now
    return between({model: was}, {model: now})


def version_in(answer: Answer) -> dict[str, str]:
    """What an answer says of who made it."""
    said = {"version": answer.model, "fingerprint": answer.fingerprint}
    return {name: value for name, value in said.items() if value}


def versions_in(book: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The versions that a session knew at one moment, by model."""
    return plain((book.get(AGENT) or {}).get(_KEPT, {}))


def between(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> list[VersionChange]:
    """What has changed of the models that answered at both.

    >>> [str(c) for c in between({"m": {"version": "1"}}, {"m": {"version": "2"}, "n": {"version": "1"}})]
    ["the provider's version of m was '1' and is '2'"]
    """
    return [
        VersionChange(model, what, one[what], other[what])
        for model, one in before.items()
        for what in FIELDS
        if (other := after.get(model, {})).get(what, "") != one.get(what, "") and what in one and what in other
    ]
