"""Secrets stay out of what is written: lines of logs, texts of errors and recordings go through here first."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SECRET_FIELD = re.compile(
    r"(?:^|[_-])(?:api_?key|key|secret|pass|password|passwd|authorization|auth|headers?|credentials?|cookie|sig|signature)s?$"
    r"|(?:access|auth|refresh|id|api|bearer)_?token$|^token$",
    re.IGNORECASE,
)
"""Names of fields whose values are not for others to see."""
_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|SIGNATURE", re.IGNORECASE)
_SHORTEST = 8
"""Characters: a shorter value of a variable is a word that may stand anywhere."""
HIDDEN = "(secret)"
_PATTERNS = (
    # Whatever a password may hold that no URL should: quotes, slashes, another @.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s:/@?#]*:[^\s,]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)([?&][^=&\s]*(?:pass|secret|token|key|sig|credential)[^=&\s]*=)[^&\s'\"<>`]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{8,}"), HIDDEN),
    (
        # What was put in place of a value above is part of one. A token alone is a word of parsers, too.
        re.compile(
            r"(?i)([\"']?\b[\w-]*(?:api[_-]?key|secret|passw(?:or)?d|credential|signature|[a-z]_?token"
            r"|(?<=[\"'])token|\btoken(?=\s*=))\b[\"']?\s*[:=]\s*)"
            r"(?:\(secret\)[^\s,;&)}\]]*|\"[^\"]*\"|'[^']*'|[^\s,;&)}\]]+)"
        ),
        rf"\1{HIDDEN}",
    ),
)


def of_environment() -> list[tuple[str, str]]:
    """Names and values of the variables that hold secrets, the longest value first: one may be part of another."""
    found = [(name, value) for name, value in os.environ.items() if len(value) >= _SHORTEST and _VARIABLE.search(name)]
    return sorted(found, key=lambda one: -len(one[1]))


def scrubbed(text: str, known: Iterable[tuple[str, str]] | None = None) -> str:
    """A text without what looks like a secret: values of such variables, passwords in URLs, tokens, keys.

    ``known`` are the variables, where they were looked up already.

    >>> scrubbed("GET https://ana:s3cr3t@api.example/v1: 401, api_key='abc', Authorization: Bearer 0123456789abcdef")
    'GET https://(secret)@api.example/v1: 401, api_key=(secret), Authorization: Bearer (secret)'
    >>> scrubbed("api_key=sk-123456789; secret='x'; unexpected token: '}'")
    "api_key=(secret); secret=(secret); unexpected token: '}'"
    """
    for name, value in of_environment() if known is None else known:
        text = text.replace(value, f"({name})")
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text
