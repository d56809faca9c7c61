"""What goes wrong with a bucket and what is then said: one line, what to do, no secret. A real S3 server that dies."""

from __future__ import annotations

import contextlib
import io
import random
import socket
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import perdure
import tests.servers
from perdure.blobs import open_blobs
from perdure.blobs.object_storage import ObjectBlobs
from perdure.errors import InvalidInput, Unavailable
from tests.blobs.places import bucket_url, unique
from tests.blobs.test_object import DATA, REF
from tests.servers.objects import KEY_ID, SECRET, objects_options, start_objects
from tests.servers.process import freeze, kill, stop, thaw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.process import Running


def says(error: BaseException) -> str:
    """All that anybody could print of an error."""
    shown = "".join(traceback.format_exception(error))
    chain = [error]
    while (last := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(last)
    return shown + "".join(f"{each!r} {each}" for each in chain)


def refused(url: str, config: dict[str, str], match: str, kind: type[Exception] = Unavailable, **options: Any) -> None:
    with pytest.raises(kind, match=match) as caught:
        ObjectBlobs(url, "store-1", config=config, **options)
    assert "\n" not in str(caught.value)
    for secret in (SECRET, "hunter2", "Signature="):
        assert secret not in says(caught.value)


def test_a_missing_bucket_is_named(config: dict[str, str]):
    refused("s3://no-such-bucket/x", config, "s3://no-such-bucket/x: there is no such bucket: create it")


def test_wrong_credentials_are_named_and_not_shown(url: str, config: dict[str, str]):
    match = "the credentials are not accepted .*check AWS_ACCESS_KEY_ID"
    refused(url, {**config, "aws_secret_access_key": "hunter2"}, match)
    refused(url, {**config, "aws_access_key_id": "nobody-hunter2"}, match)


def test_a_server_that_is_not_there_is_named(url: str, config: dict[str, str]):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        refused(url, {**config, "aws_endpoint": endpoint}, "the server cannot be reached: check the endpoint")


@contextlib.contextmanager
def answering(status: str, body: str) -> Iterator[str]:
    """The address of something that gives this answer to whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()

        def answer() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(text)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{other.getsockname()[1]}"
        other.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_that_is_no_bucket_server_is_named(url: str, config: dict[str, str]):
    with answering("418 I'm a teapot", "hi") as endpoint:
        refused(url, {**config, "aws_endpoint": endpoint}, r"the request failed \(418\): check the endpoint")


@pytest.mark.parametrize(
    ("status", "code", "match"),
    [
        ("403 Forbidden", "AccessDenied", "permission denied .403 AccessDenied.: allow to list, read, write"),
        ("403 Forbidden", "ExpiredToken", "credentials are not accepted .403 ExpiredToken"),
        ("301 Moved", "PermanentRedirect", "the bucket is in another region"),
        ("503 Slow Down", "SlowDown", "cannot answer at the moment .503 SlowDown.: try again later"),
        ("507 Full", "XMinioStorageFull", "there is no space left"),
    ],
)
def test_what_a_server_refuses_is_said_in_one_line(
    url: str, config: dict[str, str], status: str, code: str, match: str
):
    """As servers do, the answer repeats what was signed; none of it may show."""
    body = f"<Error><Code>{code}</Code><StringToSign>x-amz-security-token:hunter2</StringToSign></Error>"
    with answering(status, body) as endpoint:
        refused(url, {**config, "aws_endpoint": endpoint, "aws_session_token": "hunter2"}, match, timeout=1.0)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("gs://bucket/x", {"google_skip_signature": "true"}),
        ("az://container/x?account=agents", {"azure_storage_account_key": "aHVudGVyMg=="}),
    ],
)
def test_the_other_clouds_are_reached_the_same_way(url: str, settings: dict[str, str]):
    """What they answer cannot be tried here; that they are asked, and how a refusal reads, can."""
    with answering("403 Forbidden", "<Error><Code>AuthorizationFailure</Code></Error>") as endpoint:
        mark = "&" if "?" in url else "?"
        refused(f"{url}{mark}endpoint={endpoint}", settings, f"^{url[:5]}.*: permission denied", timeout=1.0)


def test_a_setting_that_nobody_knows_is_named(url: str, config: dict[str, str]):
    refused(url, {**config, "frobnicate": "hunter2"}, "frobnicate", InvalidInput)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("s3://", "names no bucket: write s3://bucket/prefix"),
        ("s3:///prefix", "names no bucket"),
        ("s3://ana:hunter2@bucket/x", "holds no credentials"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/../x", "dots"),
        ("s3://bucket/x?secret_access_key=hunter2", "not known here: only endpoint, region"),
        ("s3://bucket/x?frob=1", "'frob' is not known here"),
        ("gs://bucket/x?region=eu", "'region' is not known here: only endpoint"),
        ("s3://bucket:80/x", "names no bucket"),
        ("ftp://bucket/x", "names no place for blobs"),
    ],
)
def test_a_wrong_url_says_how_to_write_it(url: str, match: str):
    with pytest.raises(InvalidInput, match=match) as caught:
        open_blobs(url, "store-1")
    assert "hunter2" not in says(caught.value)


def test_the_url_may_say_where_and_the_environment_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = tests.servers.objects()
    url = bucket_url(unique(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    blobs = ObjectBlobs(f"{url}?endpoint=http://127.0.0.1:{server.port}&region=us-east-1", "store-1")
    blobs.put(REF, DATA)
    assert blobs.get(REF) == DATA
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    assert ObjectBlobs(url, "store-1").get(REF) == DATA


@pytest.fixture
def private() -> Iterator[Running]:
    """A server that a test may kill."""
    server = start_objects()
    yield server
    stop(server)


def test_a_server_that_does_not_answer_is_given_up_on(private: Running):
    url = bucket_url("x", private)
    blobs = ObjectBlobs(url, "store-1", config=objects_options(private), timeout=1.0)
    blobs.put(REF, DATA)
    freeze(private)
    try:
        for use in (lambda: blobs.get(REF), lambda: blobs.put(REF, DATA), lambda: list(blobs.refs())):
            with pytest.raises(Unavailable, match="no answer within 1 s"):
                use()
    finally:
        thaw(private)
    assert blobs.get(REF) == DATA


class Dying(io.BytesIO):
    """A content whose server dies when its second part is fetched: some of it is sent, the rest never can be."""

    def __init__(self, content: bytes, server: Running) -> None:
        super().__init__(content)
        self._server: Running | None = server

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 0 and self._server is not None:
            kill(self._server)
            self._server = None
        return super().read(size)


def test_a_server_killed_in_mid_upload_commits_nothing_and_is_used_again_when_it_is_back(
    private: Running, tmp_path: Path
):
    config = objects_options(private)
    url = f"sqlite:///{tmp_path}/agents.db"
    with perdure.open(url) as db:
        store_id = db.kernel.store.id
    blobs = ObjectBlobs(bucket_url("x", private), store_id, config=config, timeout=3.0)
    film = random.Random(4).randbytes(40 << 20)
    with perdure.open(url, blobs=blobs) as db, db.session("s") as s:
        s.vars["n"] = 1
        s.commit()

        write = blobs._client.write

        def dying(path: str, content: Any) -> None:
            write(path, Dying(content, private) if len(content) == len(film) else content)

        s.vars["film"] = film
        blobs._client.write = dying
        with pytest.raises(Unavailable, match="s3://perdure-tests/x: "):
            s.commit()
        blobs._client.write = write
        assert db.read("s").step == 1
        again = start_objects(folder=private.folder, port=private.port)
        try:
            # How long it takes to be up, and to take all of it, is not what is asked here.
            for _ in range(40):
                with suppress(Unavailable):
                    assert s.commit().step == 2
                    break
            assert db.read("s").step == 2
            assert db.read("s").vars["film"] == film
            assert db.open_blob(db.put_blob(io.BytesIO(film))).read() == film
            assert db.verify().ok
        finally:
            stop(again, keep=True)
