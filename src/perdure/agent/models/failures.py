"""What a provider's failure means: try again, give up, or make the request shorter. And its words, without secrets."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# What providers answer is any JSON: its types are looked at, not declared.
from __future__ import annotations

import re
from typing import Any

from perdure.agent.models.retry import Trouble, asked_to_wait
from perdure.errors import ContextTooLong, ModelError, ModelUnavailable

_AGAIN = (408, 409, 425, 429)
_TOO_LONG_CODES = ("context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "string_too_long")
_TOO_LONG = re.compile(
    r"maximum context length|context[ _-]?(length|window|size|limit)[^.]{0,60}(exceed|reach|too|smaller|over)"
    r"|exceed\w*[^.]{0,60}context|(prompt|input|request|conversation)[^.]{0,40} (is|are|was) too (long|large)"
    r"|input token count|too many (input )?tokens|reduce the length of|maximum number of tokens allowed"
    r"|larger than the (model's )?context",
    re.IGNORECASE,
)
_NEVER_AGAIN = ("insufficient_quota", "billing_hard_limit_reached", "account_deactivated")
_REFUSED_TYPES = ("invalid_request_error", "authentication_error", "permission_error", "not_found_error")
_SECRETS = re.compile(r"\b(sk|pk|rk|key|hs|gsk|xai)-[A-Za-z0-9_*.…-]{4,}|(?<=[Bb]earer )\S+")
MOST_WORDS = 400


class Failures:
    """Makes one provider's failures into trouble; knows its name and the key that must not be told."""

    def __init__(self, who: str, where: str, key: str) -> None:
        self._who = who
        self._where = where
        self._key = key

    def words(self, said: Any) -> str:
        """What somebody else said, on one line, bounded, without keys."""
        text = said if isinstance(said, str) else str(said)
        if len(self._key) > 6:
            text = text.replace(self._key, "…")
        return " ".join(_SECRETS.sub("…", text[: 4 * MOST_WORDS]).split())[:MOST_WORDS]

    def status(self, status: int, body: Any, headers: Any) -> Trouble:
        """An HTTP status that is no answer."""
        code, kind, message = _said(body)
        # Words in a page of a proxy say little; those in a JSON error are the provider's own.
        said = self.words(message) if message else "nothing more"
        told = f"{self._who} answered {status}: {said}"
        if status < 500 and status != 429 and self._is_too_long(status, code, message):
            return Trouble(ContextTooLong(told))
        wants = str(headers.get("x-should-retry", "")).lower()
        if (status in _AGAIN or status >= 500 or wants == "true") and wants != "false":
            if code in _NEVER_AGAIN or kind in _NEVER_AGAIN:
                return Trouble(ModelError(f"{told} (nothing left to spend: look at the account)"))
            return Trouble(ModelUnavailable(told), again=True, after=asked_to_wait(headers))
        return Trouble(ModelError(told))

    def told(self, body: Any) -> Trouble:
        """An error inside an answer that had begun well."""
        code, kind, message = _said(body)
        told = f"{self._who} broke off: {self.words(message or code or 'no reason given')}"
        if self._is_too_long(400, code, message):
            return Trouble(ContextTooLong(told))
        if code in _NEVER_AGAIN or (kind in _REFUSED_TYPES and not code.startswith(("4", "5"))):
            return Trouble(ModelError(told))
        if code.isdigit() and 400 <= int(code) < 500 and int(code) not in _AGAIN:
            return Trouble(ModelError(told))
        return Trouble(ModelUnavailable(told), again=True)

    def unreachable(self, why: str) -> Trouble:
        """No connection, or it was lost, or nothing came in time."""
        return Trouble(ModelUnavailable(f"{self._who} at {self._where} cannot be reached: {why}"), again=True)

    def cut(self) -> Trouble:
        """A stream that ended before the answer did."""
        return Trouble(ModelUnavailable(f"{self._who} cut the answer off in the middle"), again=True)

    def garbage(self, what: str) -> Trouble:
        """Something came back that is no answer."""
        return Trouble(ModelError(f"{self._who} answered {what}"), again=True, garbage=True)

    def _is_too_long(self, status: int, code: str, message: str) -> bool:
        return code in _TOO_LONG_CODES or status == 413 or bool(_TOO_LONG.search(message))


def _said(body: Any) -> tuple[str, str, str]:
    """The code, type and message of an error in one of the shapes that providers use."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict | str):
        body = body["error"]
    if isinstance(body, str):
        return "", "", "" if body.lstrip().startswith("<") else body
    if not isinstance(body, dict):
        return "", "", ""
    message = body.get("message") or body.get("detail") or body.get("msg") or ""
    code, kind = body.get("code"), body.get("type")
    return str(code) if code is not None else "", str(kind or ""), message if isinstance(message, str) else str(message)
