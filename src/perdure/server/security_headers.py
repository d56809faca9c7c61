"""The headers that every answer of the server carries: what a browser may load, frame, send and keep of it."""

from __future__ import annotations

from typing import Any

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def with_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with these beside them, but for those that it has already."""
    told = [(bytes(k).lower(), bytes(v)) for k, v in headers]
    names = {k for k, _ in told}
    return told + [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
