"""Log lines: plain or JSON, with the session, agent, worker and step they belong to, and without secrets.

The library logs through ``logging.getLogger("perdure")`` and its children and configures nothing by being imported.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perdure.system.lease_holders import describe
from perdure.system.secrets import HIDDEN, SECRET_FIELD, of_environment, scrubbed
from perdure.system.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import TextIO

ROOT = "perdure"
FIELDS = ("session", "agent", "worker", "step")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_about: ContextVar[dict[str, Any]] = ContextVar("perdure_log_context", default={})  # noqa: B039 - never mutated


@contextmanager
def about(*, step: Callable[[], int] | None = None, **fields: str) -> Generator[None]:
    """Say in every log line of this task or thread, and of those it starts, what it is about.

    >>> with about(session="trip-42", agent="travel"):
    ...     context()
    {'session': 'trip-42', 'agent': 'travel'}
    """
    known = {**_about.get(), **{name: value for name, value in fields.items() if value}}
    if step is not None:
        known["step"] = step
    token = _about.set(known)
    try:
        yield
    finally:
        _about.reset(token)


def know(**fields: str) -> None:
    """Say it from here on, to the end of this task or thread."""
    _about.set({**_about.get(), **fields})


def context() -> dict[str, Any]:
    """What is known here: session, agent, worker and step."""
    known = _about.get()
    found = {name: known[name] for name in FIELDS if name in known}
    if callable(found.get("step")):
        found["step"] = found["step"]()
    return found


class _Masking(logging.Formatter):
    """What both forms share: the record's text and fields, freed of secrets."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets = of_environment()

    def said(self, record: logging.LogRecord) -> str:
        """The message."""
        try:
            return scrubbed(record.getMessage(), self._secrets)
        except (TypeError, ValueError):
            # A line with the wrong number of arguments is still worth reading.
            return scrubbed(str(record.msg), self._secrets)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What the line is about, and what was logged with ``extra=``."""
        found = context()
        for name, value in vars(record).items():
            if name not in _OWN and not name.startswith("_"):
                found[name] = HIDDEN if SECRET_FIELD.search(name) else self._plain(value)
        return found

    def trace(self, record: logging.LogRecord) -> str:
        """The traceback, when there is one."""
        return scrubbed(self.formatException(record.exc_info), self._secrets) if record.exc_info else ""

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        return scrubbed(value if isinstance(value, str) else str(value), self._secrets)


class JsonLines(_Masking):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": timestamp(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        line["message"] = self.said(record)
        line |= {name: value for name, value in self.fields(record).items() if name not in line}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = self.trace(record)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(_Masking):
    """One line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback after it when there is one."""
        fields = self.fields(record)
        if "worker" in fields:
            # Programs get its whole name.
            fields["worker"] = describe(str(fields["worker"]))
        known = " ".join(f"{name}={value}" for name, value in fields.items())
        # One record is one line, whatever somebody has put into a name or a message.
        at, about = timestamp(record.created * 1000), f"  [{known}]" if known else ""
        line = f"{at} {record.levelname:<7} {self.said(record)}{about}"
        line = line.replace("\r", "\\r").replace("\n", "\\n")
        trace = self.trace(record)
        return f"{line}\n{trace}" if trace else line


def configure(*, as_json: bool = False, level: int | str = logging.INFO, stream: TextIO | None = None) -> None:
    """Write the library's log lines to a stream (stderr): for programs of ours; yours configure ``logging`` themselves.

    Done again, it takes the place of the last time.
    """
    handler = _Handler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logger = logging.getLogger(ROOT)
    for old in [h for h in logger.handlers if isinstance(h, _Handler)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


class _Handler(logging.StreamHandler[Any]):
    """Ours, so that it can be told from handlers of others."""
