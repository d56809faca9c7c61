"""What ``--set``, ``--unset`` and ``--edit`` mean: a state as a person changes it on the command line."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Values are any JSON here: their types are looked at, not declared.
from __future__ import annotations

import base64
import binascii
import difflib
import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, LimitExceeded
from perdure.system.wording import GivenTwice, once_each

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTRUCTIONS = ("system", "instructions")
SAID = "said"
LARGEST = 16 << 20
"""Bytes of a file that can be given as a value."""
_EDITOR = "vi"


class Edits(NamedTuple):
    """What is to be different."""

    instructions: str | None
    said: str | None
    """Takes the place of the last message of the user."""
    paths: list[tuple[list[str], Any]]
    gone: list[list[str]]
    added: list[tuple[list[str], Any]]
    """The same as paths, for what need not be there yet."""

    @property
    def any(self) -> bool:
        """Whether the state or the instructions change."""
        return bool(self.paths or self.gone or self.added) or self.said is not None or self.instructions is not None


def parse(sets: list[str], unsets: list[str], adds: Sequence[str] = ()) -> Edits:
    """Read ``PATH=VALUE`` and ``PATH=@FILE``.

    >>> parse(["vars.city=Porto", "vars.n=2", "system=Be brief.", "/system=x"], ["vars.old"])
    Edits(instructions='Be brief.', said=None, paths=[(['vars', 'city'], 'Porto'), (['vars', 'n'], 2), (['system'], \
'x')], gone=[['vars', 'old']], added=[])
    """
    told: dict[str, str] = {}
    paths: list[tuple[list[str], Any]] = []
    for text in sets:
        path, value = _split(text, "--set")
        if path in INSTRUCTIONS or path == SAID:
            told["instructions" if path in INSTRUCTIONS else SAID] = _text(value)[0]
        else:
            paths.append((_parts(path), _value(value)))
    added = [(_parts(path), _value(value)) for path, value in (_split(text, "--add") for text in adds)]
    return Edits(told.get("instructions"), told.get(SAID), paths, [_parts(path) for path in unsets], added)


def _split(text: str, option: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise InvalidInput(f"{option} {text!r:.80} says nothing: write PATH=VALUE or PATH=@FILE")
    return path, value


def _text(value: str) -> tuple[str, str]:
    """A text, given as it is or as a file; and the file's name."""
    if not value.startswith("@") or value.startswith("@@"):
        return value.removeprefix("@"), ""
    name = value[1:]
    try:
        with open(name, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise InvalidInput(f"{name} has more than {LARGEST >> 20} MiB: that is no value for a state")
        return data.decode("utf-8"), name
    except OSError as e:
        raise InvalidInput(f"{name!r:.200} cannot be read: {e.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise InvalidInput(f"{name!r:.200} holds no text in UTF-8") from None


def _value(value: str) -> Any:
    text, file = _text(value)
    if file:
        return parse_json(text, file) if file.endswith(".json") else text
    try:
        return parse_json(text, "")
    except LimitExceeded:
        raise
    except InvalidInput as e:
        if isinstance(e.__context__, GivenTwice):
            raise
        return text


def parse_json(text: str, where: str) -> Any:
    """A JSON value; bytes are written as ``{"$bytes": "<base64>"}``."""
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _bytes(once_each(pairs)), parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        if "integer string conversion" in str(e):
            # It is JSON, and must not be taken for a text.
            raise LimitExceeded(f"{where or 'the value'} has a number of over 4,200 digits: write it as text") from None
        raise InvalidInput(f"{where or 'the value'} is not JSON: {e}"[:300]) from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _bytes(value: dict[str, Any]) -> Any:
    if list(value) != ["$bytes"] or not isinstance(value["$bytes"], str):
        return value
    try:
        return base64.b64decode(value["$bytes"], validate=True)
    except binascii.Error as e:
        raise ValueError(f"$bytes is not base64: {e}") from None


def _parts(path: str) -> list[str]:
    """The names on the way: ``vars.city``, or as a JSON pointer ``/vars/a.b``."""
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    return path.split(".")


def apply(state: dict[str, Any], edits: Edits) -> None:
    """Carry them out on a plain state; ``InvalidInput`` names what does not fit.

    >>> state = {"vars": {"a": 1}, "messages": [{"role": "user", "content": "x"}]}
    >>> apply(state, parse(["vars.a=2", "messages.-1.content=y", "messages.-={}"], []))
    >>> state
    {'vars': {'a': 2}, 'messages': [{'role': 'user', 'content': 'y'}, {}]}
    >>> apply({"vars": {"city": "Faro"}}, parse(["vars.ctiy=Porto"], []))
    Traceback (most recent call last):
    perdure.errors.InvalidInput: the state has no 'vars.ctiy' (there is vars.city): --add 'vars.ctiy=...' makes it
    """
    for parts, value, new in (*((*p, False) for p in edits.paths), *((*p, True) for p in edits.added)):
        at, last = _walk(state, parts)
        if isinstance(at, list) and last == "-":
            at.append(value)
        elif isinstance(at, list):
            at[_index(at, last, parts)] = value
        elif isinstance(at, dict):
            if not (new or last in at):
                raise _unknown(parts, at)
            at[last] = value
        else:
            raise _nothing(parts)
    for parts in edits.gone:
        at, last = _walk(state, parts)
        if isinstance(at, list):
            del at[_index(at, last, parts)]
        elif isinstance(at, dict) and last in at:
            del at[last]
        else:
            raise _nothing(parts)
    if edits.said is not None:
        _say(state, edits.said)


def _say(state: dict[str, Any], said: str) -> None:
    messages = state.setdefault("messages", [])
    if not isinstance(messages, list):
        raise InvalidInput("its messages are no list: there is nothing that the user has said")
    at = next((i for i in reversed(range(len(messages))) if _is_users(messages[i])), len(messages))
    messages[at : at + 1] = [{"role": "user", "content": said}]


def _is_users(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


def _walk(state: Any, parts: list[str]) -> tuple[Any, str]:
    at = state
    for part in parts[:-1]:
        if isinstance(at, list):
            at = at[_index(at, part, parts)]
        elif isinstance(at, dict) and part in at:
            at = at[part]
        else:
            raise _nothing(parts)
    return at, parts[-1]


def _index(at: list[Any], part: str, parts: list[str]) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", part) or not -len(at) <= int(part) < len(at):
        raise _nothing(parts)
    return int(part)


def _nothing(parts: list[str]) -> InvalidInput:
    return InvalidInput(f"the state has nothing at {'.'.join(parts)[:200]!r} that could be changed")


def _unknown(parts: list[str], at: dict[str, Any]) -> InvalidInput:
    """A key that is not there, which may be a slip of the finger; the nearest one that is."""
    path = ".".join(parts)[:200]
    near = difflib.get_close_matches(parts[-1], [*map(str, at), *(() if parts[1:] else (*INSTRUCTIONS, SAID))], 1, 0.5)
    there = f" (there is {'.'.join([*parts[:-1], near[0]])[:200]})" if near else ""
    return InvalidInput(f"the state has no {path!r}{there}: --add '{path}=...' makes it")


def in_editor(state: dict[str, Any], extra: Any) -> dict[str, Any]:
    """The state as it is after a person has edited it; ``extra`` writes what JSON has no form for."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _EDITOR
    with tempfile.TemporaryDirectory(prefix="perdure-edit-") as folder:
        path = Path(folder, "state.json")
        path.write_text(json.dumps(state, indent=2, ensure_ascii=False, default=extra) + "\n", "utf-8")
        try:
            ended = subprocess.call([*shlex.split(command), str(path)])
        except (OSError, ValueError) as e:
            raise InvalidInput(f"the editor {command!r:.100} cannot be started ({e}): set EDITOR") from None
        if ended:
            raise InvalidInput(f"the editor ended with {ended}: nothing was changed")
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput("what the editor left is no text in UTF-8: nothing was changed") from None
    new = parse_json(text, "what was edited")
    if not isinstance(new, dict):
        raise InvalidInput("a state is a JSON object: nothing was changed")
    return new
