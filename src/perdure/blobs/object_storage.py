"""Blobs in a bucket: S3, Google Cloud Storage, Azure, or whatever speaks as one of them.

Buckets have no locks, and nothing is deleted on a condition. So a writer who finds its content there and a collector
who is about to delete it meet by marks: each first writes its own and then looks for the other's. A server that shows
what was written before (all of these do) shows at least one of them the other. A writer that sees the collector's mark
uploads the content anew, under a name that was never used, so that no deletion that is still on its way can hit it.
``docs/explanation/storage.md`` has the argument in full.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.blobs.content import check_content, check_ref, checked
from perdure.errors import (
    Corrupted,
    HandleClosed,
    InvalidInput,
    LimitExceeded,
    MissingExtra,
    NotFound,
    PerdureError,
    StoreFull,
    Unavailable,
)
from perdure.system import faults
from perdure.system.clock import SystemClock
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.protocols import Clock

OWNER = "store"
"""The object that says whose blobs these are."""
_NAME = re.compile(
    r"(?P<shard>[0-9a-f]{2})/(?P<ref>(?P=shard)[0-9a-f]{62})/"
    r"(?P<generation>(?P<made>[0-9a-f]{12})-[0-9a-f]{16})(?:\.(?P<condemned>x)|\.r(?P<renewed>[0-9a-f]{12})-[0-9a-f]{8})?"
)


class Listed(NamedTuple):
    """One object as a listing shows it."""

    path: str
    size: int
    modified: int = 0
    """When it was written, by the server's clock, ms; many servers only know the second."""


class Generation(NamedTuple):
    """One upload of a content, with everything that was said about it since."""

    name: str
    path: str
    size: int | None
    """Of the content; None when only marks are left."""
    time: int
    """When it was last put or renewed, ms."""
    renewals: tuple[str, ...]
    """The paths of its renewals, oldest first."""
    condemned: bool
    age: int
    """How long before its mark it was last put or renewed, by the server's clock, ms; 0 without a mark."""

    @property
    def usable(self) -> bool:
        """Whether a writer may rely on it."""
        return self.size is not None and not self.condemned


def folder_of(ref: str) -> str:
    """Where all objects of a blob lie."""
    return f"{ref[:2]}/{ref}"


def new_generation(ref: str, now: int) -> str:
    """The path of a content that is about to be uploaded."""
    return f"{folder_of(ref)}/{_hex(now)}-{os.urandom(8).hex()}"


def renewal_of(path: str, now: int) -> str:
    """The path of a renewal. Random digits: two in one millisecond are two, and a collector notices each."""
    return f"{path}.r{_hex(now)}-{os.urandom(4).hex()}"


def mark_of(path: str) -> str:
    """The path of the mark that condemns a generation."""
    return f"{path}.x"


def _hex(now: int) -> str:
    return f"{max(0, now):012x}"


def generations(listed: Iterable[Listed]) -> dict[str, list[Generation]]:
    """What a listing says of each ref, the newest generation first; what is not ours is left out.

    >>> path = new_generation("ab" * 32, 1000)
    >>> [found] = generations([Listed(path, 5), Listed(renewal_of(path, 2000), 0)])["ab" * 32]
    >>> found.size, found.time, found.usable
    (5, 2000, True)
    """
    found: dict[tuple[str, str], _Parts] = {}
    for item in listed:
        if not (match := _NAME.fullmatch(item.path)):
            continue
        parts = found.setdefault((match["ref"], match["generation"]), _Parts(int(match["made"], 16)))
        if match["condemned"]:
            parts.condemned = item.modified
            continue
        parts.modified = max(parts.modified, item.modified)
        if match["renewed"]:
            parts.renewals.append(item.path)
            parts.time = max(parts.time, int(match["renewed"], 16))
        else:
            parts.size = item.size
    out: dict[str, list[Generation]] = {}
    for (ref, name), parts in sorted(found.items(), reverse=True):
        path = f"{folder_of(ref)}/{name}"
        # Renewals of one generation differ only in their time and random digits: their order is that of time.
        renewals = tuple(sorted(parts.renewals))
        condemned = parts.condemned is not None
        age = parts.condemned - parts.modified if parts.condemned is not None else 0
        out.setdefault(ref, []).append(Generation(name, path, parts.size, parts.time, renewals, condemned, age))
    return out


class _Parts:
    def __init__(self, made: int) -> None:
        self.size: int | None = None
        self.time = made
        self.renewals: list[str] = []
        self.modified = 0
        self.condemned: int | None = None


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>|\"code\": ?\"?(\w{1,60})")
_SETTING = re.compile(r"Configuration key: '([^']{1,80})' is not valid")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_UNKNOWN = (
    "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "InvalidClientTokenId",
    "AuthenticationFailed", "TokenRefreshRequired", "InvalidAuthenticationInfo",
)  # fmt: skip
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_FULL = ("QuotaExceeded", "XMinioStorageFull", "EntityTooLargeForQuota", "InsufficientAccountStorage")
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where clouds hand out credentials to the machines they run: asked for when none were given."""


def is_missing_bucket(error: Exception) -> bool:
    """Whether it is the whole bucket that is not there."""
    return any(words in str(error) for words in _BUCKET)


def explain(error: Exception, where: str, timeout: float) -> PerdureError:
    """The error to raise instead, without a trace of the request."""
    text = str(error)
    scheme = where.partition("://")[0]
    keys = _KEYS.get(scheme, "the credentials")
    status = match[1] if (match := _STATUS.search(text)) else ""
    code = (match[1] or match[2]) if (match := _CODE.search(text)) else ""
    said = " ".join(part for part in (status, code) if part)
    kind = type(error).__name__
    if match := _SETTING.search(text):
        return InvalidInput(f"{where}: {match[1]!a} is no setting of {scheme}: see obstore's names of settings")
    if is_missing_bucket(error):
        return Unavailable(f"{where}: there is no such bucket: create it, or correct its name")
    if any(host in text for host in _METADATA):
        return Unavailable(f"{where}: there are no credentials: set {keys}, or pass config=")
    if code in _REGION or status in ("301", "307") or "incorrectly configured region" in text:
        return Unavailable(f"{where}: the bucket is in another region ({said or kind}): set AWS_REGION or ?region=")
    if code in _UNKNOWN or status == "401" or kind == "UnauthenticatedError":
        return Unavailable(f"{where}: the credentials are not accepted ({said}): check {keys}")
    if code in _FULL or status == "507":
        return StoreFull(f"{where}: there is no space left ({said}): nothing was written")
    if status == "403" or kind == "PermissionDeniedError":
        return Unavailable(f"{where}: permission denied ({said}): allow to list, read, write and delete objects there")
    if "kind: Timeout" in text or "TimedOut" in text:
        return Unavailable(
            f"{where}: no answer within {timeout:g} s: check the endpoint and the network, and try again"
        )
    if "kind: Connect" in text or "kind: Request" in text:
        return Unavailable(f"{where}: the server cannot be reached: check the endpoint and the network, and try again")
    if "URL scheme is not allowed" in text:
        return Unavailable(f"{where}: the endpoint is not https: set AWS_ALLOW_HTTP=true to use it nevertheless")
    if status.startswith("5") or status == "429":
        return Unavailable(f"{where}: the server cannot answer at the moment ({said}): try again later")
    return Unavailable(f"{where}: the request failed ({said or kind}): check the endpoint, the bucket and {keys}")


R = TypeVar("R")
TIMEOUT = 20.0
"""Seconds that one request may take, and after which none is tried again."""
CONNECT = 5.0
RETRIES = 4
PART = 8 << 20
"""Bytes of one part of a large upload, and of one request of a large download."""
PARTS_AT_ONCE = 3

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
        except ImportError as error:
            raise MissingExtra("obstore", "objects", error) from None
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
            failure = NotFound(f"{self._where}: no such object")
            if is_missing_bucket(error):
                failure = explain(error, self._where, self._timeout)
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            failure = explain(error, self._where, self._timeout)
        # Outside of the handler: what the driver said must not even be the context of our error.
        raise failure


def _next(pages: Any) -> Any:
    return next(pages, None)


def _bucket(place: Place, config: dict[str, str], timeout: float) -> Any:
    """The driver's handle; what ``config`` does not say it finds in the environment."""
    from obstore import store

    kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[place.scheme]
    endpoint = config.get(_PARAMETERS[place.scheme]["endpoint"], "")
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


LEFTOVER = 3_600_000
"""Age in ms from which marks without a content are taken for left behind."""
LONG = 60_000
"""An upload that took longer than this many ms is renewed: its name still says when it began."""
PRECISION = 1000
"""To how many ms servers say when an object was written."""
KNOWN = 10_000
"""How many refs a handle remembers the place of."""
TRIES = 5


class ObjectBlobs:
    """Implements :class:`perdure.protocols.Blobs` on a bucket. Credentials come from the environment or ``config``.

    ``config`` holds settings as obstore names them (``aws_access_key_id``, ``google_service_account``, ...).
    """

    def __init__(
        self,
        url: str,
        store_id: str,
        *,
        clock: Clock | None = None,
        config: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.url = shown(url)
        self._store_id = store_id
        self._clock: Clock = clock or SystemClock()
        self._client = Client(place_of(url), config, self.url.partition("?")[0], timeout)
        self._places: dict[str, tuple[str, int]] = {}
        """Path and size of contents where they were last seen, so that most requests need no listing before."""
        self._closed = False
        # Looked at when opened: a wrong bucket shows at once, not when the first screenshot is taken.
        self._claimed = self._is_ours()

    # -- the protocol ------------------------------------------------------------------------------

    def put(self, ref: str, data: bytes) -> None:
        """Make the content durable under its ref; when it is there already, renew it instead."""
        self._check()
        check_content(ref, data)
        self._put(ref, data, len(data))

    def put_stream(self, chunks: Iterable[bytes]) -> str:
        """Make a content durable that comes in pieces, or renew it; its ref.

        Its name is known only at its end, so it waits in a temporary file until then.
        """
        self._check()
        seen = hashlib.sha256()
        size = 0
        with tempfile.SpooledTemporaryFile(max_size=PART) as spool:
            for chunk in chunks:
                seen.update(chunk)
                size += len(chunk)
                spool.write(chunk)
            ref = seen.hexdigest()
            if size <= PART:
                spool.seek(0)
                self._put(ref, spool.read(), size)
            else:
                self._put(ref, spool, size)
        return ref

    def get(self, ref: str) -> bytes:
        """The content, verified; ``NotFound`` when missing, ``Corrupted`` when altered."""
        return b"".join(self.get_stream(ref))

    def get_stream(self, ref: str) -> Iterator[bytes]:
        """The content in pieces, verified before its last one is given out."""
        self._check()
        check_ref(ref)
        return self._stream(ref)

    def refs(self) -> Iterator[tuple[str, int]]:
        """All refs with the time (ms) each was last put or renewed; also clears what killed collectors left."""
        self._check()
        leftover = self._clock.wall() - LEFTOVER
        for ref, found in generations(self._client.list()).items():
            for gone in (each for each in found if each.size is None and each.time < leftover):
                self._client.delete([*gone.renewals, mark_of(gone.path)])
            times = [each.time for each in found if each.size is not None]
            if times:
                yield ref, max(times)

    def delete(self, ref: str, unless_renewed_since: int) -> bool:
        """Delete unless it was renewed at or after that time (ms); True when deleted."""
        self._check()
        before = self._list(check_ref(ref))
        held = [each for each in before if each.size is not None]
        if not held or any(each.time >= unless_renewed_since for each in before):
            return False
        grace = self._clock.wall() - unless_renewed_since
        # Condemn what is there. Whoever renewed it before this shows in the next listing; whoever renews it after
        # this sees the mark, and relies on another generation.
        for each in held:
            self._client.write(mark_of(each.path), b"")
        faults.point("blobs.delete.condemned")
        seen = {each.name for each in held}
        known = {path for each in held for path in each.renewals}
        spared = False
        for each in self._list(ref):
            came = each.name not in seen or not known.issuperset(each.renewals)
            if came or each.time >= unless_renewed_since or self._is_young(each, grace):
                spared = True
                continue
            # The content first: while it is there, the mark must be.
            self._client.delete([each.path])
            faults.point("blobs.delete.content_gone")
            self._client.delete([*each.renewals, mark_of(each.path)])
        self._places.pop(ref, None)
        return not spared

    def close(self) -> None:
        """No further use."""
        self._closed = True
        self._client.close()

    # -- parts -------------------------------------------------------------------------------------

    def _put(self, ref: str, content: bytes | IO[bytes], size: int) -> None:
        self._claim()
        if (known := self._places.get(ref)) and known[1] == size and self._renew(ref, known[0]):
            return
        usable = (each for each in self._list(ref) if each.usable and each.size == size)
        if (there := next(usable, None)) and self._renew(ref, there.path):
            return
        for _ in range(TRIES):
            began = self._clock.wall()
            path = new_generation(ref, began)
            if not isinstance(content, bytes):
                content.seek(0)
            faults.point("blobs.put.before_upload")
            self._client.write(path, content)
            faults.point("blobs.put.after_upload")
            if self._clock.wall() - began <= LONG or self._renew(ref, path):
                self._remember(ref, path, size)
                return
        raise LimitExceeded(f"blob {ref}: each upload took longer than the grace period of the collector: raise it")

    def _renew(self, ref: str, path: str) -> bool:
        """Say that somebody relies on this generation; False when a collector was first."""
        mine = renewal_of(path, self._clock.wall())
        self._client.write(mine, b"")
        faults.point("blobs.renew.written")
        found = next((each for each in self._list(ref) if each.path == path), None)
        if found is None or not found.usable:
            self._places.pop(ref, None)
            return False
        assert found.size is not None
        self._remember(ref, path, found.size)
        # One is enough: those before ours say nothing more than ours does.
        self._client.delete([other for other in found.renewals if other < mine])
        return True

    def _is_young(self, each: Generation, grace: int) -> bool:
        """Whether the server saw it put within the grace period, whatever the clocks of our machines say."""
        return isinstance(self._clock, SystemClock) and each.age + PRECISION < grace

    def _stream(self, ref: str) -> Iterator[bytes]:
        where = f"blob {ref} in {self.url}"
        damaged = False
        tried: set[str] = set()
        for _ in range(TRIES):
            path, size = self._find(ref, tried)
            if not path:
                break
            started = False
            try:
                for chunk in checked(ref, where, self._parts(path, size)):
                    started = True
                    yield chunk
            except NotFound:
                # A collector took this generation since it was listed; there is another one if anybody relies on it.
                if started:
                    raise
            except Corrupted:
                if started:
                    raise
                damaged = True
            else:
                return
            self._places.pop(ref, None)
            tried.add(path)
        if damaged:
            raise Corrupted(where, "this blob is not what was written")
        raise NotFound(f"there is no blob {ref} in {self.url}")

    def _find(self, ref: str, tried: set[str]) -> tuple[str, int]:
        if known := self._places.get(ref):
            return known
        found = [each for each in self._list(ref) if each.size is not None and each.path not in tried]
        # Condemned ones are as good to read, as long as they are there.
        for each in sorted(found, key=lambda each: each.condemned):
            assert each.size is not None
            self._remember(ref, each.path, each.size)
            return each.path, each.size
        return "", 0

    def _parts(self, path: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, PART):
            yield self._client.read(path, start, min(start + PART, size))

    def _list(self, ref: str) -> list[Generation]:
        return generations(self._client.list(folder_of(ref))).get(ref, [])

    # -- whose it is -------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether the prefix is this store's; False while it is nobody's."""
        try:
            owner = self._client.read(OWNER)
        except NotFound:
            return False
        if owner != self._store_id.encode():
            raise InvalidInput(
                f"{self.url} holds the blobs of another store ({owner[:80].decode(errors='replace')!a}): "
                "give each store a prefix of its own, such as s3://bucket/name-of-the-store"
            )
        return True

    def _claim(self) -> None:
        """Before anything is put: two stores that begin at the same moment must not share the prefix."""
        if not self._claimed:
            self._client.create(OWNER, self._store_id.encode())
            self._claimed = self._is_ours()

    def _remember(self, ref: str, path: str, size: int) -> None:
        if len(self._places) >= KNOWN:
            self._places.clear()
        self._places[ref] = (path, size)

    def _check(self) -> None:
        if self._closed:
            raise HandleClosed(f"{self.url}: these blobs were closed: open them again")
