"""Keys for the digest chain: where they come from and how they are named. No secret ever leaves this module in text."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV = "PERDURE_KEY"
MIN_BYTES = 16


class Keys:
    """The keys a process holds; the first one signs, all of them verify.

    >>> ring = Keys(b"sixteen bytes or more")
    >>> ring
    Keys('3b69e997')
    """

    def __init__(self, *secrets: bytes | str) -> None:
        self._chain: dict[str, bytes] = {}
        for secret in secrets:
            if not isinstance(secret, bytes | str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidInput(f"a key is bytes or text, not a {type(secret).__name__}")
            raw = secret.encode() if isinstance(secret, str) else secret
            if len(raw) < MIN_BYTES:
                raise InvalidInput(f"a key needs at least {MIN_BYTES} bytes: make one with `openssl rand -base64 32`")
            # One secret, separate uses: the chain's key says nothing about keys derived for other purposes.
            name = hashlib.sha256(b"perdure key name\0" + raw).hexdigest()[:8]
            self._chain[name] = hashlib.sha256(b"perdure chain key 1\0" + raw).digest()
        self.current = next(iter(self._chain), "")

    def chain(self, name: str) -> bytes | None:
        """The digest key of that name, or None when it is not held."""
        return self._chain.get(name)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def __repr__(self) -> str:
        return f"Keys({', '.join(repr(n) for n in self._chain)})"


def find_keys(keys: Keys | bytes | str | None, env: Mapping[str, str] | None = None) -> Keys:
    """The keys that were given, or those in ``PERDURE_KEY`` (several separated by commas, the first one signs)."""
    if isinstance(keys, Keys):
        return keys
    if keys is not None:
        return Keys(keys)
    given = (os.environ if env is None else env).get(ENV, "")
    return Keys(*(part.strip() for part in given.split(",") if part.strip()))
