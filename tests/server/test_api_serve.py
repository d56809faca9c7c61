"""``perdure serve`` and ``perdure console`` as programs: where they listen, what they print, what they refuse."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

import perdure
from tests.server.listening import LIMIT, until
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def command(*args: str) -> list[str]:
    """The program with these words."""
    return [sys.executable, "-m", "perdure.cli", *args]


def environment(**more: str) -> dict[str, str]:
    """Without a token unless one is given."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | more


@contextmanager
def started(folder: Path, *args: str, **env: str) -> Iterator[str]:
    """The address that a server prints."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command(*args), env=environment(**env), stdout=file, stderr=file)
    try:

        def printed() -> str:
            assert process.poll() is None, log.read_text()
            found = re.search(r"at (http://\S+)\n", log.read_text())
            return found[1] if found else ""

        yield until(printed, log.read_text)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT)
        assert "Traceback" not in log.read_text()
        assert log.read_text().count("http://") == 1
    finally:
        process.kill()
        process.wait()


def made(folder: Path) -> str:
    """A database with a session."""
    url = url_of("sqlite", folder)
    with perdure.open(url) as db, db.session("s") as s:
        s.commit()
    return url


def test_a_server_prints_its_address_with_a_fresh_token_once(tmp_path: Path):
    url = made(tmp_path)
    tokens: set[str] = set()
    for _ in range(2):
        with started(tmp_path, "serve", "--store", url, "--port", "0") as address:
            base, _, token = address.partition("?token=")
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", base)
            assert len(token) == 32
            tokens.add(token)
            bearer = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{base}api/v1/sessions/s", headers=bearer).json()["id"] == "s"
            assert httpx.get(f"{base}api/v1/sessions/s").status_code == 401
    assert len(tokens) == 2


def test_a_token_that_was_passed_is_not_printed(tmp_path: Path):
    url, token = made(tmp_path), "a-token-of-my-own-choice"
    with started(
        tmp_path, "console", "--no-browser", "--store", url, "--port", "0", "--host", "localhost", PERDURE_TOKEN=token
    ) as address:
        assert token not in address
        assert httpx.get(f"{address}api/v1/sessions", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    with started(tmp_path, "serve", "--no-token", "--store", url, "--port", "0") as address:
        assert httpx.get(f"{address}api/v1/sessions").status_code == 200
        assert httpx.get(f"{address}api/v1/sessions", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--host", "0.0.0.0", "--no-token"], "without a token"),
        (["--host", "example.invalid", "--no-token"], "without a token"),
        (["--token", "short"], "at least 16"),
        (["--token", "x" * 20, "--no-token"], "exclude each other"),
        (["nothing_of_that_name"], "cannot be imported"),
        (["--host", "203.0.113.7"], "cannot be listened on"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, args: list[str], words: str):
    done = subprocess.run(
        command("serve", "--store", made(tmp_path), "--port", "0", *args),
        env=environment(), capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert words in line
    assert "Traceback" not in done.stderr


def test_the_console_alone_makes_no_database(tmp_path: Path):
    done = subprocess.run(
        command("console", "--store", f"sqlite:///{tmp_path}/none.db"),
        env=environment(), capture_output=True, text=True, check=False, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 3
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("missing", "words"),
    [("uvicorn", "uvicorn is not installed"), ("click", "uvicorn cannot be imported, for click is not installed")],
)
def test_without_the_extra_it_says_what_to_install(tmp_path: Path, missing: str, words: str):
    program = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from perdure.cli.program import run\n"
        f"sys.exit(run(['serve', '--store', {made(tmp_path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (2, f'perdure: {words}: pip install "perdure[console]"\n')


def test_a_dependency_that_is_there_and_broken_is_not_told_to_be_missing():
    told = perdure.MissingExtra("psycopg", "postgres", ImportError("no pq wrapper available"))
    assert str(told) == 'psycopg cannot be imported, for no pq wrapper available: pip install "perdure[postgres]"'
    told = perdure.MissingExtra("opentelemetry-api", "telemetry", ModuleNotFoundError(name="opentelemetry.trace"))
    assert str(told) == 'opentelemetry-api is not installed: pip install "perdure[telemetry]"'
