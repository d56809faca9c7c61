"""Requests to a bucket: few kinds, each bounded in time and retries, each with its errors explained."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.blobs._object_errors import explain, is_missing_bucket
from perdure.blobs._object_names import Listed
from perdure.errors import InvalidInput, MissingExtra, NotFound
from perdure.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

R = TypeVar("R")
TIMEOUT = 20.0
"""Seconds that one request may take, and after which none is tried again."""
CONNECT = 5.0
RETRIES = 4
PART = 8 << 20
"""Bytes of one part of a large upload, and of one request of a large download."""
PARTS_AT_ONCE = 3

_ENDPOINTS = {"s3": "aws_endpoint", "gs": "google_base_url", "az": "azure_endpoint"}
_PARAMETERS = {
    "s3": {"endpoint": "aws_endpoint", "region": "aws_region"},
    "gs": {"endpoint": "google_base_url"},
    "az": {"endpoint": "azure_endpoint", "account": "azure_storage_account_name"},
}
_ENDPOINT_VARIABLES = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "gs": (), "az": ()}


class Place(NamedTuple):
    """A bucket and a prefix in it."""

    scheme: str
    bucket: str
    prefix: str
    settings: dict[str, str]
    """What the URL said beside the place, as the driver names it."""


def place_of(url: str) -> Place:
    """What a URL says. Credentials in it are refused: URLs end up in logs and process lists.

    >>> place_of("s3://shop/agents?region=eu-west-1")
    Place(scheme='s3', bucket='shop', prefix='agents', settings={'aws_region': 'eu-west-1'})
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    known = _PARAMETERS[scheme]
    if "@" in parts.netloc:
        raise InvalidInput(f"{shown(url)}: a bucket's URL holds no credentials: set them in the environment")
    if not parts.netloc or ":" in parts.netloc or parts.fragment:
        raise InvalidInput(f"{shown(url)} names no bucket: write {scheme}://bucket/prefix")
    prefix = unquote(parts.path).strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise InvalidInput(f"{shown(url)}: the prefix has an empty part or dots: write {scheme}://bucket/some/prefix")
    settings: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            msg = f"{shown(url)}: {name!r:.40} is not known here: only {', '.join(known)}, never credentials"
            raise InvalidInput(msg)
        settings[known[name]] = value
    return Place(scheme, parts.netloc, prefix, settings)


class Client:
    """One bucket below one prefix."""

    def __init__(self, place: Place, config: Mapping[str, str] | None, where: str, timeout: float) -> None:
        try:
            import obstore
        except ImportError:
            raise MissingExtra("obstore", "objects") from None
        self._api: Any = obstore
        self._where = where
        self._timeout = timeout
        self._bucket: Any = None
        self._bucket = self._ask(_bucket, place, {**(config or {}), **place.settings}, timeout)

    def close(self) -> None:
        """Let the connections go."""
        self._bucket = None

    # -- requests ----------------------------------------------------------------------------------

    def list(self, folder: str | None = None) -> Iterator[Listed]:
        """All objects below a folder (None: all of them), with what happened before the request."""
        pages: Any = iter(self._ask(self._api.list, self._bucket, folder))
        while (page := self._ask(_next, pages)) is not None:
            for item in page:
                yield Listed(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """An object, or a part of it; ``NotFound`` when it is not there."""
        if end is None:
            return self._ask(lambda: bytes(self._api.get(self._bucket, path).bytes()))
        return self._ask(lambda: bytes(self._api.get_range(self._bucket, path, start=start, end=end)))

    def write(self, path: str, content: bytes | IO[bytes]) -> None:
        """Make an object durable; a large one is sent in parts, and is there when all are."""
        self._ask(lambda: self._api.put(self._bucket, path, content, chunk_size=PART, max_concurrency=PARTS_AT_ONCE))

    def create(self, path: str, content: bytes) -> None:
        """Make an object unless there is one. Where a server knows no such condition, the last one wins."""
        from obstore.exceptions import AlreadyExistsError

        def once() -> None:
            try:
                self._api.put(self._bucket, path, content, mode="create")
            except AlreadyExistsError:
                return
            except NotImplementedError:
                self._api.put(self._bucket, path, content)

        self._ask(once)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        for path in paths:
            try:
                self._ask(self._api.delete, self._bucket, path)
            except NotFound:
                continue

    # -- errors ------------------------------------------------------------------------------------

    def _ask(self, request: Callable[..., R], *args: Any) -> R:
        from obstore.exceptions import BaseError

        failure: Exception
        try:
            return request(*args)
        except FileNotFoundError as error:
            missing = not is_missing_bucket(error)
            failure = NotFound(f"{self._where}: no such object") if missing else self._explain(error)
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            failure = self._explain(error)
        # Outside of the handler: what the driver said must not even be the context of our error.
        raise failure

    def _explain(self, error: Exception) -> Exception:
        return explain(error, self._where, self._timeout)


def _next(pages: Any) -> Any:
    return next(pages, None)


def _bucket(place: Place, config: dict[str, str], timeout: float) -> Any:
    """The driver's handle; what ``config`` does not say it finds in the environment."""
    from obstore import store

    kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[place.scheme]
    endpoint = config.get(_ENDPOINTS[place.scheme], "")
    endpoint = endpoint or next((os.environ[n] for n in _ENDPOINT_VARIABLES[place.scheme] if os.environ.get(n)), "")
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(CONNECT, timeout)),
        "timeout": timedelta(seconds=timeout),
    }
    if endpoint.startswith("http://"):
        # Whoever writes http:// means it; by default the driver refuses.
        client["allow_http"] = True
    return kind(
        place.bucket,
        prefix=place.prefix or None,
        config=config,
        client_options=client,
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=timeout),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
    )
