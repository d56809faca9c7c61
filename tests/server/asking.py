"""An application over a fresh database, asked in this process."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

import perdure
from perdure.server.app import create_app
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from perdure import Agent

TOKEN = "a-token-for-tests-only"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
API = "/api/v1"


class Asking:
    """A client with a token, the database as programs have it, and the application."""

    def __init__(self, http: TestClient, db: perdure.Database, app: Any) -> None:
        self.http = http
        self.db = db
        self.app = app

    def get(self, path: str, status: int = 200, /, **params: Any) -> Any:
        """The JSON that a path answers."""
        answer = self.http.get(API + path, params=params)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        """The same for what changes something."""
        answer = self.http.post(API + path, json=body) if body is not None else self.http.post(API + path)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
        return answer.json()


@contextmanager
def asking(
    folder: Path,
    kind: str = "sqlite",
    *,
    agents: Sequence[Agent] = (),
    headers: dict[str, str] = BEARER,
    **options: Any,
) -> Iterator[Asking]:
    """An application, and a second handle on its database."""
    url, clock = url_of(kind, folder), options.pop("clock", None)
    with perdure.open(url, clock=clock) as db:
        served = perdure.open_async(url, maintain=False, clock=clock)
        app = create_app(served, token=options.pop("token", TOKEN), agents=agents, **options)
        try:
            with TestClient(app, base_url="http://127.0.0.1", headers=headers, raise_server_exceptions=False) as http:
                yield Asking(http, db, app)
        finally:
            asyncio.run(served.close())
