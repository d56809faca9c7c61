"""Secrets stay out of what is written: texts of errors and recordings go through here before anybody keeps them."""

from __future__ import annotations

import os
import re

SECRET_FIELD = re.compile(
    r"(?:^|[_-])(?:api_?key|key|secret|password|passwd|authorization|auth|headers?|credentials?|cookie)s?$"
    r"|(?:access|auth|refresh|id|api|bearer)_?token$|^token$",
    re.IGNORECASE,
)
"""Names of fields whose values are not for others to see."""
_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8
"""Characters: a shorter value of a variable is a word that may stand anywhere."""
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), "(secret)"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 (secret)"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{8,}"), "(secret)"),
    (
        re.compile(
            r"(?i)([\"']?\b[\w-]*(?:api_?key|secret|passw(?:or)?d|(?:access|auth|refresh|api)_?token)\b[\"']?\s*[:=]\s*)"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&)}\]]+)"
        ),
        r"\1(secret)",
    ),
)


def of_environment() -> list[tuple[str, str]]:
    """Names and values of the variables that hold secrets."""
    return [(name, value) for name, value in os.environ.items() if len(value) >= _SHORTEST and _VARIABLE.search(name)]


def scrubbed(text: str) -> str:
    """A text without what looks like a secret: values of such variables, passwords in URLs, tokens, keys.

    >>> scrubbed("GET https://ana:s3cr3t@api.example/v1: 401, api_key='abc', Authorization: Bearer 0123456789abcdef")
    'GET https://(secret)@api.example/v1: 401, api_key=(secret), Authorization: Bearer (secret)'
    """
    for name, value in of_environment():
        text = text.replace(value, f"({name})")
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text
