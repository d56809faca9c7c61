"""Which recorded call is the one that is asked for: by tool and arguments, whatever has become of its tool since.

What is recorded is what was said, defaults included; the digest leaves out what is as its parameter's default, so that
one that was added makes no other call. What a default was may change: whoever has found a record compares it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.session.calls.records import ARGS_LOST, is_begun
from perdure.session.tools.declaration import call_digest
from perdure.session.tools.migrations import migrated, steps_between
from perdure.state.document import plain
from perdure.state.values import same

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.session.tools.declaration import Tool
    from perdure.state.document import TrackedDict

    Record = TrackedDict | dict[str, Any]

VERSION = "version"
"""In a record: the version of the tool that the call was made for, where that is not the first."""
BY_DEFAULT = "by_default"
"""In a record: the parameters that had their defaults, which the digest leaves out."""
ASKED_ARGS = "asked_args"
"""In the record of a call that a person had made otherwise: what was asked for."""


class Asked(NamedTuple):
    """A call that is asked for."""

    tool: Tool
    args: dict[str, Any]
    digest: str

    @property
    def digests(self) -> list[str]:
        """Under which it may be recorded by this version of its tool: other parameters may have been as their defaults
        were then."""
        tool, args = self.tool, self.args
        left = tool.by_default(args)
        said = {name: value for name, value in args.items() if name not in left}
        ways = [said, args]
        ways += [{**said, name: args[name]} for name in left]
        ways += [{k: v for k, v in said.items() if k != name} for name in said if name in tool.defaults]
        return list(dict.fromkeys(call_digest(tool.name, tool.version, way) for way in ways))

    def is_of(self, record: Record) -> bool:
        """Whether a record is of this call as it was asked for, made by this version of its tool."""
        if record.get(ARGS_LOST):
            return record["digest"] in self.digests
        return self._is_its_version(record) and self._is(record, plain(record.get(ASKED_ARGS, record["args"])))

    def is_same(self, record: Record) -> bool:
        """Whether a record is of this call, as it was asked for or made, by whichever version of its tool."""
        if record.get(ARGS_LOST):
            return record["digest"] in self.digests
        return any(self._is(record, plain(record[name])) for name in ("args", ASKED_ARGS) if name in record)

    def goes_on_with(self, record: Record) -> bool:
        """Whether a call that was begun is this one, and nobody is sent other arguments under its id by going on."""
        if not self.is_same(record):
            return False
        if record.get(ARGS_LOST) or "edited" in record:
            return True
        left = record.get(BY_DEFAULT, ())
        return _are_equal(plain(record["args"]), left, self.args, self.tool.by_default(self.args))

    def _is_its_version(self, record: Record) -> bool:
        return record["tool"] == self.tool.name and record.get(VERSION, "1") == self.tool.version

    def _is(self, record: Record, args: dict[str, Any]) -> bool:
        tool, mine = self.tool, self.args
        left, by_default = record.get(BY_DEFAULT, ()), tool.by_default(mine)
        if self._is_its_version(record):
            return _are_equal(args, left, mine, by_default)
        made_by = record["tool"], record.get(VERSION, "1")
        try:
            if (steps := steps_between(*made_by, tool.name, tool.version)) is not None:
                # What this version would not take is no call of it.
                return _are_equal(tool.edited(migrated(args, steps)), left, mine, by_default)
            if (steps := steps_between(tool.name, tool.version, *made_by)) is not None:
                # The one that asks is the older one: both may be at work while a program is replaced.
                return _are_equal(args, left, migrated(mine, steps), by_default)
        except Exception:  # noqa: S110
            # A migration that fails says nothing of which call it is.
            pass
        return record["tool"] == tool.name and _are_equal(args, left, mine, by_default)


def asked(tool: Tool, args: dict[str, Any]) -> Asked:
    """A call by what was said."""
    return Asked(tool, args, digest_of(tool, args))


def digest_of(tool: Tool, args: dict[str, Any]) -> str:
    """Names a call by tool, version and those arguments that are not as their defaults.

    >>> from perdure import tool
    >>> old, new = tool(lambda order: 0, name="pay"), tool(lambda order, note="": 0, name="pay")
    >>> digest_of(old, {"order": 1}) == digest_of(new, {"order": 1, "note": ""})
    True
    """
    left = tool.by_default(args)
    said = {name: value for name, value in args.items() if name not in left} if left else args
    return call_digest(tool.name, tool.version, said)


def identify(record: Record, tool: Tool, args: dict[str, Any]) -> None:
    """Have a record say that it is of this call."""
    for name in (VERSION, BY_DEFAULT):
        record.pop(name, None)
    record.update(tool=tool.name, args=args, digest=digest_of(tool, args), **versioned(tool, args))


def versioned(tool: Tool, args: dict[str, Any]) -> dict[str, Any]:
    """What a record says of its tool beside the name, and of what had its default; where there is something to say."""
    found: dict[str, Any] = {} if tool.version == "1" else {VERSION: tool.version}
    left = tool.by_default(args)
    return {**found, BY_DEFAULT: left} if left else found


def key_in(place: str, tool: str) -> str | None:
    """The key by which a call is known at its place, whatever its tool is called by now; None without one."""
    return place.removeprefix(f"k:{tool}:") if place.startswith("k:") else None


def is_unknown(record: Record) -> bool:
    """Whether nobody knows what became of a call, or its result is still to come."""
    return "read" not in record and (is_begun(record) or record["status"] in ("raised", "unknown"))


def _are_equal(
    args: dict[str, Any], by_default: Collection[str], others: dict[str, Any], others_by_default: Collection[str]
) -> bool:
    """Whether arguments of two calls are equal: what one of them does not have counts as its default there."""
    both = args.keys() & others.keys()
    if not (args.keys() - both <= set(by_default) and others.keys() - both <= set(others_by_default)):
        return False
    mine, theirs = ({name: one[name] for name in both} for one in (args, others))
    return same(mine, theirs) or call_digest("", "", mine) == call_digest("", "", theirs)
