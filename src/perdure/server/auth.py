"""Who may ask: the token, and the cookie that stands for it in browsers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from perdure.errors import InvalidInput
from perdure.server.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

FORM_HEADER = "x-perdure-form"
FORM_FIELD = "form_token"
SAFE = ("GET", "HEAD", "OPTIONS")
SHORTEST = 16
"""Characters a token has at least: it must not be guessed."""
FOREVER = 400 * 24 * 3600
MOST_FIELDS = 2000
"""Fields a form may have."""


class Guard:
    """Decides about requests by their headers alone.

    A browser gets a cookie that is made from the token, not the token. What changes something needs, beside the
    cookie, the form token that only pages of this server know.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable()):
            raise InvalidInput(f"a token has at least {SHORTEST} printable ASCII characters: choose a longer one")
        self._token = token
        # Without a token there is still a form token: pages of others must not change anything.
        self._secret = (token or os.urandom(32).hex()).encode()
        # Browsers keep one jar for all ports of a machine: two servers with two tokens must not share a name in it.
        self.cookie = f"perdure-{self._derived('name')[:8]}"
        self.cookie_value = self._derived("cookie")
        self.form_token = self._derived("form")

    @property
    def needs_token(self) -> bool:
        """Whether anybody is asked for a token."""
        return self._token is not None

    def is_token(self, text: str) -> bool:
        """Whether somebody knows the token."""
        return self._token is None or _same(text, self._token)

    def set_cookie(self, *, secure: bool) -> str:
        """The header that gives a browser its cookie."""
        parts = f"{self.cookie}={self.cookie_value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={FOREVER}"
        return f"{parts}; Secure" if secure else parts

    def check(self, method: str, headers: Mapping[str, str], form: bytes | None) -> None:
        """Whether a request may be answered; ``form`` is the body of a form that a browser has sent."""
        said = headers.get("authorization", "")
        if said:
            kind, _, token = said.partition(" ")
            if kind.lower() == "bearer" and self._token is not None and _same(token.strip(), self._token):
                return
            if self._token is not None:
                raise self._unauthorized()
        if self._token is not None and not self._is_cookie(headers.get("cookie", "")):
            raise self._unauthorized()
        if method not in SAFE:
            self._check_form(headers, form)

    def _check_form(self, headers: Mapping[str, str], form: bytes | None) -> None:
        """Nothing is changed on behalf of a browser unless a page of ours asks for it."""
        origin = headers.get("origin", "")
        if origin and _origin_host(origin) != headers.get("host", "").lower():
            raise Refusal(403, "forbidden-form", "the request was made by a page of another server")
        if self._token is None and not _from_browser(headers):
            return
        told = headers.get(FORM_HEADER, "")
        if not told and form is not None:
            told = _field(form, FORM_FIELD)
        if not _same(told, self.form_token):
            raise Refusal(
                403,
                "forbidden-form",
                f"a request with a cookie that changes something needs the form token of a page, as the header "
                f"{FORM_HEADER} or the field {FORM_FIELD}; programs send the token as Authorization: Bearer",
            )

    def _is_cookie(self, header: str) -> bool:
        """Whether our cookie is among those of a browser.

        Cookies of other servers on the same machine come along, whatever they look like: each is looked at by itself.
        """
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return any(name == self.cookie and _same(value.strip('"'), self.cookie_value) for name, _, value in pairs)

    def _unauthorized(self) -> Refusal:
        detail = "send the token that perdure serve printed, as Authorization: Bearer TOKEN"
        return Refusal(401, "unauthorized", detail, WWW_Authenticate='Bearer realm="perdure"')

    def _derived(self, use: str) -> str:
        return hmac.new(self._secret, use.encode(), hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to that address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    address = address_of(host.strip("[]"))
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _same(told: str, known: str) -> bool:
    return hmac.compare_digest(told.encode("utf-8", "replace"), known.encode())


def _field(form: bytes, name: str) -> str:
    """A field of a form; "" when it is not there, or there are more fields than any page of ours has."""
    try:
        return parse_qs(form.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS).get(name, [""])[0]
    except ValueError:
        return ""


def _origin_host(origin: str) -> str:
    """The host that a page came from; "" when it cannot be told."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _from_browser(headers: Mapping[str, str]) -> bool:
    """Browsers say where a request comes from; programs need no form token where nobody needs a token."""
    return any(name in headers for name in ("origin", "sec-fetch-site", "sec-fetch-mode", "referer"))


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that is written there; None when it is a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
