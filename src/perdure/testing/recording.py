"""Record and replay: what models answered and what tools returned, kept in a readable file and given again offline.

Requests to models go by their digest, calls of tools by their name and arguments; the n-th time the same is asked, the
n-th answer is given. What was never recorded is a :class:`RecordingMiss`.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages and arguments are any JSON: their types are looked at, not declared.
from __future__ import annotations

import base64
import builtins
import hashlib
import inspect
import json
import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import errors
from perdure.agent import models
from perdure.agent.models import Answer, Delta, Request, request_digest, text_of
from perdure.agent.replay.recorded_session import answer_of
from perdure.doctor.instrumentation import defined, is_theirs, theirs
from perdure.errors import InvalidInput, ModelError
from perdure.session.tools import Later, NotDone, running
from perdure.session.tools.context import Asking
from perdure.session.tools.declaration import Tool
from perdure.session.tools.exceptions import LetThrough
from perdure.state.values import refusal
from perdure.system.disk import Disk, check_folder_of, make_folder
from perdure.system.secrets import SECRET_FIELD, of_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from perdure.agent.models import ChatModel

FORMAT = 1
VARIABLE = "PERDURE_RECORD"
HIDDEN = "(not recorded)"
_EFFECT = re.compile(r"ef_[0-9a-f]{24}")
_SAME = ("model", "tools", "params")
"""Parts of a request that are written only where they differ from the request before."""


class RecordingMiss(LetThrough):
    """What was asked for is not in the recording, or cannot be recorded.

    Not an ``Exception``, so that nothing that deals with the errors of tools and models hides it.
    """


class Recording:
    """One file of what models answered and tools returned; made anew, or given again."""

    def __init__(self, path: str | os.PathLike[str], *, record: bool = False, again: str = "") -> None:
        self.path = Path(path)
        self.record = record
        """Whether the world is asked, and what it says is written down."""
        self.miss: RecordingMiss | None = None
        """The first thing that was not in the recording."""
        self._again = again or f"{VARIABLE}=1"
        self._lock = threading.Lock()
        self._requests: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._given: dict[int, int] = {}
        self._there = record
        if record:
            # Before anything that costs money is asked.
            check_folder_of(self.path.parent)
        elif self.path.exists():
            self._read()

    # -- standing in between ---------------------------------------------------------------------------------------

    @contextmanager
    def standing_in(self) -> Generator[None]:
        """Stand between this process and all its models and tools."""
        before = models.around, running.around
        models.around, running.around = self._ask, self._runnable
        try:
            yield
        finally:
            models.around, running.around = before

    def finish(self) -> None:
        """All went well: write the file, or see that all of it was asked for and that no miss was swallowed."""
        if self.miss is not None:
            raise self.miss
        if self.record:
            self.write()
            return
        left = [e for e in (*self._requests, *self._calls) if self._given.get(id(e), 0) < len(e["outcomes"])]
        if left:
            what = "\n".join(f"  {_shown(entry)}" for entry in left[:5])
            raise RecordingMiss(f"recorded, and never asked for:\n{what}\n{self._advice()}")

    async def _ask(self, model: ChatModel, request: Request, on_delta: Callable[[Delta], None] | None) -> Answer:
        clean, ids = _cleaned(request)
        if self.record:
            try:
                answer = await model.answer(request, on_delta)
            except ModelError as e:
                self._keep_answer(clean, {"failed": type(e).__name__, "words": _scrubbed(str(e))})
                raise
            self._keep_answer(clean, _renamed(_answer_as_json(answer), ids))
            return answer
        digest = request_digest(Request(**clean))
        with self._lock:
            found = next((e for e in self._requests if e["digest"] == digest), None)
            said = self._next(found)
        if said is None or found is None:
            raise self._missed(self._about_request(clean, found))
        if "failed" in said:
            raise _model_error(said)
        answer = _answer_of(_renamed(said, {short: id for id, short in ids.items()}))
        if on_delta is not None and (text := text_of(answer.message)):
            on_delta(Delta(text=text))
        return answer

    def _runnable(self, tool: Tool) -> Callable[..., Any]:
        """What is called in place of a tool's function. The library's own tools, such as other agents, are called."""
        fn = tool.fn
        if not is_theirs(defined(fn)):
            return fn
        if inspect.iscoroutinefunction(fn):

            async def awaited(**kwargs: Any) -> Any:
                args = _arguments(tool, kwargs)
                if not self.record:
                    return self._result(tool, args)
                try:
                    result = await fn(**kwargs)
                except Exception as e:
                    self._keep_error(tool, args, e)
                    raise
                return self._keep_result(tool, args, result)

            return awaited

        def blocking(**kwargs: Any) -> Any:
            args = _arguments(tool, kwargs)
            if not self.record:
                return self._result(tool, args)
            try:
                result = fn(**kwargs)
            except Exception as e:
                self._keep_error(tool, args, e)
                raise
            return self._keep_result(tool, args, result)

        return blocking

    # -- recording -------------------------------------------------------------------------------------------------

    def _keep_answer(self, clean: dict[str, Any], outcome: dict[str, Any]) -> None:
        digest = request_digest(Request(**clean))
        self._keep(self._requests, {"digest": digest}, {"digest": digest, "request": clean, "outcomes": []}, outcome)

    def _keep_result(self, tool: Tool, args: dict[str, Any], result: Any) -> Any:
        if isinstance(result, Later):
            kind, kept = "later", tool.poll_types.result_as_json(result.handle)
        else:
            kind, kept = "returned", tool.types.result_as_json(result)
        if what := refusal(kept):
            raise self._missed(f"{tool.name} returned {errors.an(what)}, which is not JSON and cannot be recorded")
        outcome = {kind: _as_json(kept)}
        self._keep_call(tool, args, outcome)
        return result

    def _keep_error(self, tool: Tool, args: dict[str, Any], error: Exception) -> None:
        if isinstance(error, Asking):
            outcome = {"asks": error.question, "schema": error.schema}
        else:
            outcome = {"raised": type(error).__name__, "like": _builtin(type(error)), "words": _scrubbed(str(error))}
        self._keep_call(tool, args, outcome)

    def _keep_call(self, tool: Tool, args: dict[str, Any], outcome: dict[str, Any]) -> None:
        same = {"tool": tool.name, "args": args}
        self._keep(self._calls, same, {**same, "outcomes": []}, outcome)

    def _keep(self, entries: list[dict[str, Any]], same: dict[str, Any], new: dict[str, Any], outcome: Any) -> None:
        with self._lock:
            found = next((e for e in entries if all(e[k] == v for k, v in same.items())), None)
            if found is None:
                entries.append(found := new)
            found["outcomes"].append(outcome)

    def write(self) -> None:
        """Write the file, in a form that people can read and compare."""
        shown: list[dict[str, Any]] = []
        before: dict[str, Any] = {}
        for entry in self._requests:
            request = entry["request"]
            new = {k: request[k] for k in _SAME if k not in before or request[k] != before[k]}
            shared = _shared(before.get("messages", []), request["messages"])
            new |= {"messages_as_before": shared, "messages": request["messages"][shared:]}
            shown.append({"digest": entry["digest"], **new, "answers": entry["outcomes"]})
            before = request
        recording = {"perdure_recording": FORMAT, "models": shown, "tools": self._calls}
        make_folder(Disk(), str(self.path.parent.absolute()))
        text = _scrubbed(json.dumps(recording, indent=1, ensure_ascii=False))
        self.path.write_text(text + "\n", encoding="utf-8")

    # -- replaying -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if read["perdure_recording"] != FORMAT:
                raise InvalidInput(f"{self.path} is a recording of another format: {self._advice()}")
            before: dict[str, Any] = {"messages": []}
            for entry in read["models"]:
                before = {k: entry[k] if k in entry else before[k] for k in _SAME} | {
                    "messages": [*before["messages"][: entry["messages_as_before"]], *entry["messages"]]
                }
                self._requests.append({"digest": entry["digest"], "request": before, "outcomes": entry["answers"]})
            self._calls = [{"tool": e["tool"], "args": e["args"], "outcomes": e["outcomes"]} for e in read["tools"]]
        except (ValueError, KeyError, TypeError) as e:
            raise InvalidInput(f"{self.path} is not a recording ({type(e).__name__}: {e}); {self._advice()}") from None
        for entry in self._requests:
            if request_digest(Request(**entry["request"])) != entry["digest"]:
                what = _shown(entry)
                raise InvalidInput(f"{self.path} was edited: {what} does not have its digest; {self._advice()}")
        self._there = True

    def _next(self, entry: dict[str, Any] | None) -> dict[str, Any] | None:
        """The outcome that is due; None when there is none (any more)."""
        if entry is None:
            return None
        given = self._given.get(id(entry), 0)
        if given >= len(entry["outcomes"]):
            return None
        self._given[id(entry)] = given + 1
        return entry["outcomes"][given]

    def _result(self, tool: Tool, args: dict[str, Any]) -> Any:
        with self._lock:
            found = next((e for e in self._calls if e["tool"] == tool.name and e["args"] == args), None)
            outcome = self._next(found)
        if outcome is None:
            raise self._missed(self._about_call(tool.name, args, found))
        if "asks" in outcome:
            raise Asking(outcome["asks"], outcome["schema"])
        if "raised" in outcome:
            raise _error(outcome)
        if "later" in outcome:
            return Later(_from_json(outcome["later"]))
        return tool.types.result(_from_json(outcome["returned"]))

    # -- misses ----------------------------------------------------------------------------------------------------

    def _missed(self, what: str) -> RecordingMiss:
        where = theirs(inspect.currentframe())
        miss = RecordingMiss(f"{what}\n  asked from: {where or 'a thread of its own'}\n{self._advice()}")
        self.miss = self.miss or miss
        return miss

    def _advice(self) -> str:
        there = "" if self._there else " (there is no such file)"
        return (
            f"  recording: {self.path}{there}\n"
            f"  to record anew, with the real models and tools: {self._again}"
        )  # fmt: skip

    def _about_request(self, clean: dict[str, Any], found: dict[str, Any] | None) -> str:
        said = f"{clean['model']} was asked what is not in the recording: {_shown({'request': clean})}"
        return said + self._about(self._requests, clean, "request", found)

    def _about_call(self, name: str, args: dict[str, Any], found: dict[str, Any] | None) -> str:
        said = f"{name} was called as it is not in the recording: {_shown({'tool': name, 'args': args})}"
        return said + self._about([e for e in self._calls if e["tool"] == name], args, "args", found)

    def _about(self, entries: list[dict[str, Any]], now: Any, part: str, found: dict[str, Any] | None) -> str:
        if found is not None:
            return f"\n  it was recorded {len(found['outcomes'])} times, and asked once more than that"
        fields = _fields(now)
        apart = {n: _differences(_fields(e[part]), fields) for n, e in enumerate(entries)}
        if not apart:
            return "\n  nothing of that kind was recorded"
        nearest = min(apart, key=lambda n: (len(apart[n]), n))
        path, then, today = apart[nearest][0] if apart[nearest] else ("the order of its fields", "", "")
        then, today = _around_difference(then, today)
        more = f" (and in {len(apart[nearest]) - 1} more fields)" if len(apart[nearest]) > 1 else ""
        return (
            f"\n  nearest recorded: {_shown(entries[nearest])}\n  differs in {path}{more}:"
            f"\n    recorded: {then}\n    now:      {today}"
        )


@contextmanager
def recorded(path: str | os.PathLike[str], *, record: bool | None = None) -> Generator[Recording]:
    """Give models' answers and tools' results again from a file; with ``record``, or ``PERDURE_RECORD=1``, make it.

    For tests with pytest there is the fixture ``perdure_recording``.
    """
    recording = Recording(path, record=recording_wanted() if record is None else record)
    with recording.standing_in():
        yield recording
    recording.finish()


def recording_wanted() -> bool:
    """Whether the environment asks for recordings to be made."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


# -- what is kept ------------------------------------------------------------------------------------------------------


def _cleaned(request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """A request as it is recorded: without secrets, and with effects numbered, since their ids differ from run to run.

    The numbers by effect come with it.
    """
    hidden = _hidden(request._asdict())
    text = json.dumps(hidden, ensure_ascii=False, default=_hashed)
    ids = {id: f"ef_#{n}" for n, id in enumerate(dict.fromkeys(_EFFECT.findall(text)), 1)}
    return json.loads(_scrubbed(_EFFECT.sub(lambda m: ids[m[0]], text))), ids


def _hidden(value: Any) -> Any:
    """A value without what stands under names that are those of secrets."""
    if isinstance(value, dict):
        return {k: HIDDEN if SECRET_FIELD.search(str(k)) and _is_leaf(v) else _hidden(v) for k, v in value.items()}
    return [_hidden(v) for v in value] if isinstance(value, list | tuple) else value


def _is_leaf(value: Any) -> bool:
    # The schema of a parameter that is called password is no password.
    return not isinstance(value, dict) or not ({"type", "$ref", "anyOf"} & set(value))


def _scrubbed(text: str) -> str:
    """A text without the values of variables of the environment that hold secrets."""
    for name, value in of_environment():
        text = text.replace(json.dumps(value, ensure_ascii=False)[1:-1], f"({name})")
    return text


def _hashed(value: Any) -> Any:
    """Bytes go by their hash: they may be a film."""
    if isinstance(value, bytes):
        return {"$bytes": hashlib.sha256(value).hexdigest(), "size": len(value)}
    msg = f"{errors.an(type(value).__name__)} cannot be sent to a model"
    raise TypeError(msg)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if not names:
        return value
    either = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return json.loads(either.sub(lambda m: names[m[0]], json.dumps(value)))


def _arguments(tool: Tool, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call as the journal has them, without secrets."""
    given = tool.types.arguments_as_json({k: v for k, v in kwargs.items() if k != "ctx"})
    args = _as_json(_hidden(given))
    return json.loads(_scrubbed(json.dumps(args, ensure_ascii=False)))


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda v: {"$base64": base64.b64encode(v).decode()}))


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$base64"}:
            return base64.b64decode(value["$base64"])
        return {k: _from_json(v) for k, v in value.items()}
    return [_from_json(v) for v in value] if isinstance(value, list) else value


def _answer_as_json(answer: Answer) -> dict[str, Any]:
    more = {"finish": answer.finish, "version": answer.model, "id": answer.id, "fingerprint": answer.fingerprint}
    usage = {k: v for k, v in answer.usage._asdict().items() if v}
    return {"message": _as_json(answer.message), **{k: v for k, v in more.items() if v}, "usage": usage}


def _answer_of(said: dict[str, Any]) -> Answer:
    return answer_of({"model": said, "usage": said["usage"]}, _from_json(said["message"]))


def _model_error(said: dict[str, Any]) -> ModelError:
    kind = getattr(errors, said["failed"], ModelError)
    return (kind if isinstance(kind, type) and issubclass(kind, ModelError) else ModelError)(said["words"])


def _builtin(kind: type[Exception]) -> str:
    """The nearest error of Python itself that an error is one of."""
    return next(k.__name__ for k in kind.__mro__ if k.__module__ == "builtins")


def _error(outcome: dict[str, Any]) -> Exception:
    """An error of the recorded name and words; nothing is imported for it."""
    if outcome["raised"] == NotDone.__name__:
        return NotDone(outcome["words"])
    base = getattr(builtins, outcome["like"], Exception)
    if outcome["raised"] == outcome["like"] and isinstance(base, type) and issubclass(base, Exception):
        kind: type[Exception] = base
    else:
        parent = base if isinstance(base, type) and issubclass(base, Exception) else Exception
        kind = type(outcome["raised"], (parent,), {})
    try:
        return kind(outcome["words"])
    except TypeError:
        return type(outcome["raised"], (Exception,), {})(outcome["words"])


# -- what is shown -----------------------------------------------------------------------------------------------------


def _shown(entry: dict[str, Any]) -> str:
    """One line on a request or a call."""
    if "tool" in entry:
        return f"{entry['tool']}({json.dumps(entry['args'], ensure_ascii=False)[1:-1]:.200})"
    messages = entry["request"]["messages"]
    last = messages[-1] if messages else {}
    said = text_of(last) or json.dumps(last.get("tool_calls", ""), ensure_ascii=False)
    return f"{len(messages)} messages, the last one of {last.get('role', 'nobody')}: {said[:160]!r}"


def _shared(one: list[Any], other: list[Any]) -> int:
    """How many items two lists begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _fields(value: Any, path: str = "") -> dict[str, Any]:
    """All fields of a value by their paths."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Any] = {}
    for key, part in parts:
        found |= _fields(part, f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}" if path else str(key))
    # What is empty is no field of its own: what is in it on the other side is.
    return found if found or value in ({}, []) else {path or "all of it": value}


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    absent = object()

    def text(value: Any) -> str:
        return "(not there)" if value is absent else json.dumps(value, ensure_ascii=False)

    found: list[tuple[str, str, str]] = []
    for path in {**then, **now}:
        a, b = then.get(path, absent), now.get(path, absent)
        if a is absent or b is absent or a != b or type(a) is not type(b):
            found.append((path, text(a), text(b)))
    return found


def _around_difference(one: str, other: str, width: int = 160) -> tuple[str, str]:
    """Two texts cut to where they begin to differ."""
    at = _shared(list(one), list(other))
    begin = max(0, at - width // 3) if max(len(one), len(other)) > width else 0

    def cut(text: str) -> str:
        end = begin + width
        return f"{'…' if begin else ''}{text[begin:end]}{'…' if len(text) > end else ''}"

    return cut(one), cut(other)
