"""Names of requests and messages: equal digests mean that a model was sent, or said, exactly the same."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.agent.models import Request


def request_digest(request: Request) -> str:
    """The digest of everything a model is sent, in the order in which it is sent.

    >>> from perdure.agent.models import Request
    >>> one = Request("m", [{"role": "user", "content": "hi"}], [], {"seed": 1})
    >>> request_digest(one) == request_digest(one._replace(params={"seed": 2}))
    False
    """
    return _digest([request.model, request.messages, request.tools, dict(sorted(request.params.items()))])


def message_digest(message: dict[str, Any]) -> str:
    """The digest of one message."""
    return _digest(message)


def _digest(value: Any) -> str:
    # The order of keys counts: it is part of the bytes that are sent. Escapes stand for lone surrogates, too.
    text = json.dumps(value, separators=(",", ":"), default=_named)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _named(value: Any) -> Any:
    """Bytes go by their hash: they may be a film."""
    if isinstance(value, bytes):
        return {"$bytes": hashlib.sha256(value).hexdigest(), "size": len(value)}
    msg = f"a {type(value).__name__} cannot be sent to a model"
    raise TypeError(msg)
