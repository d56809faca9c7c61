"""Who may ask, by which name, and what nobody is told: the token, cookies, forms, hosts, sizes, errors."""

from __future__ import annotations

import html
import json
import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from perdure import InDoubt, telemetry, tool
from perdure.errors import InvalidInput, Poisoned
from perdure.protocols import WorkerRow
from perdure.server.api import sessions
from perdure.server.auth import FORM_HEADER, Guard
from perdure.server.request_checks import MAX_BODY
from perdure.server.security_headers import HEADERS
from perdure.telemetry.sampling import Sampler
from tests.server.asking import API, BEARER, TOKEN, asking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.asking import Asking

PAGE = {"Accept": "text/html,application/xhtml+xml"}


def cookie(api: Asking) -> dict[str, str]:
    """The headers of a browser that has been let in."""
    guard = api.app.state.ctx.guard
    return {"Cookie": f"{guard.cookie}={guard.cookie_value}"}


def form_token(api: Asking) -> str:
    """What only pages of the server know."""
    return api.app.state.ctx.guard.form_token


def made(api: Asking) -> None:
    """A session to do something to."""
    with api.db.session("s") as s:
        s.commit()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Cookie": f"{Guard(TOKEN).cookie}={TOKEN}"},
        {"Cookie": f"{Guard(TOKEN).cookie}="},
        {"Cookie": f"{Guard(TOKEN).cookie}={Guard(TOKEN + 'x').cookie_value}"},
        {"Cookie": "=;;;"},
    ],
)
def test_without_the_token_nobody_is_told_anything(tmp_path: Path, headers: dict[str, str]):
    with asking(tmp_path, headers=headers) as api:
        for path in (f"{API}/sessions", f"{API}/sessions/s", f"{API}/events", "/metrics", f"{API}/nothing"):
            answer = api.http.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert api.http.post(f"{API}/sessions", json={"agent": "a"}).status_code == 401
        assert api.http.get(f"{API}/sessions", params={"token": TOKEN}).status_code == 401


def test_health_and_the_document_are_for_everybody(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        assert api.http.get("/healthz").text == "ok\n"
        assert api.http.get("/readyz").text == "ok\n"
        assert api.http.get(f"{API}/openapi.json").json()["openapi"] == "3.1.0"
        assert api.http.post("/healthz").status_code == 405


def test_a_server_whose_log_was_removed_shows_nothing_old_and_wants_to_be_restarted(tmp_path: Path):
    # Without the compiled part what was saved lies elsewhere, and whoever closes is told.
    with suppress(Poisoned), asking(tmp_path) as api:
        (log,) = tmp_path.rglob("*.db-wal")
        log.unlink()
        assert api.http.get(f"{API}/sessions").json()["type"] == "urn:perdure:error:poisoned"
        assert api.http.get("/readyz").status_code == 503
        answer = api.http.get("/healthz")
        assert (answer.status_code, answer.text) == (503, "this process can no longer use its store: restart it\n")


def test_a_store_that_cannot_be_reached_makes_it_not_ready_but_alive(tmp_path: Path):
    with asking(tmp_path) as api:
        api.app.state.ctx.db.kernel.store.close()
        assert api.http.get("/healthz").status_code == 200
        assert api.http.get("/readyz").status_code == 503
        answer = api.http.get(f"{API}/sessions")
        assert answer.status_code == 503
        assert answer.json()["type"].startswith("urn:perdure:error:")


def test_metrics_are_text_for_prometheus(tmp_path: Path):
    with asking(tmp_path) as api:
        answer = api.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert "perdure_checkpoint_duration_seconds" in answer.text


def test_metrics_tell_how_the_store_stands_and_write_nothing(tmp_path: Path):
    telemetry.disable()
    try:
        with asking(tmp_path) as api:
            with pytest.raises(InDoubt), api.db.session("s") as s:
                s.call(tool(_lost, name="pay"))
            told = api.http.get("/metrics").text
            assert "perdure_session_in_doubt 1.0" in told
            assert "perdure_approval_pending 0.0" in told
            assert "perdure_workers 0.0" in told
            assert "perdure_worker_slots" not in told, "no worker runs here"
            store: Any = api.db.kernel.store
            assert not store.has_board()
            store.board().beat(WorkerRow("w1", "host", 1, "1", ("shop",), 20))
            api.app.state.sampler = Sampler(api.app.state.ctx.db.kernel.store)
            assert "perdure_workers 1.0" in api.http.get("/metrics").text
            api.app.state.sampler = Sampler(api.app.state.ctx.db.kernel.store)
            api.app.state.ctx.db.kernel.store.close()
            assert api.http.get("/metrics").status_code == 503, "old numbers would pass for those of now"
    finally:
        telemetry.disable()


def _lost() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "evil.example:80"]
)
def test_a_name_that_was_pointed_here_is_refused(tmp_path: Path, host: str):
    with asking(tmp_path) as api:
        answer = api.http.get(f"{API}/sessions", headers={"Host": host})
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:perdure:error:forbidden-host"
        # What is suggested can be typed.
        said = answer.json()["detail"]
        assert ("--allow-host" in said) == bool(host), said


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:80@evil.example", "localhost:80/evil", "[::1]evil.example", "[::1]:80@evil", "localhost:80:evil"],
)
def test_a_name_with_anything_but_a_port_behind_it_is_refused(tmp_path: Path, host: str):
    with asking(tmp_path) as api:
        answer = api.http.get(f"{API}/sessions", headers={"Host": host})
        assert answer.status_code == 403
        assert "that is no name" in answer.json()["detail"]


def test_own_names_and_addresses_are_fine(tmp_path: Path):
    with asking(tmp_path, hosts=["console.example"]) as api:
        for host in ("localhost:1", "LOCALHOST", "127.0.0.1:80", "[::1]:80", "10.1.2.3", "console.example:443"):
            assert api.http.get(f"{API}/sessions", headers={"Host": host}).status_code == 200
    with asking(tmp_path, hosts=["*"]) as api:
        assert api.http.get(f"{API}/sessions", headers={"Host": "any.example"}).status_code == 200


def test_a_browser_trades_the_token_for_a_cookie(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        answer = api.http.get("/x", params={"token": TOKEN, "a": "1"}, headers=PAGE, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/x?a=1")
        said = answer.headers["set-cookie"]
        assert "HttpOnly" in said
        assert "SameSite=Strict" in said
        assert TOKEN not in said
        assert "Set-Cookie" not in api.http.get("/", params={"token": "wrong"}, headers=PAGE).headers
        asked = api.http.get("/", headers=PAGE)
        assert asked.status_code in (200, 401)
        api.http.cookies.clear()
        asked = api.http.get("/", headers=PAGE)
        assert asked.status_code == 401
        assert "<form" in asked.text
        for to, where in (("/sessions", "/sessions"), ("//evil.example", "/"), ("https://evil.example", "/")):
            answer = api.http.post("/login", data={"token": TOKEN, "to": to}, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, where)
        assert api.http.post("/login", data={"token": "no"}, follow_redirects=False).status_code == 401


def test_a_cookie_alone_reads_and_changes_nothing(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        made(api)
        api.db.post("s", "hello")
        path = f"{API}/sessions/s/cancel"
        assert api.http.get(f"{API}/sessions/s", headers=cookie(api)).status_code == 200
        for headers in ({}, {FORM_HEADER: "wrong"}, {FORM_HEADER: TOKEN}):
            answer = api.http.post(path, json={}, headers={**cookie(api), **headers})
            assert answer.status_code == 403
            assert answer.json()["type"] == "urn:perdure:error:forbidden-form"
        assert api.db.look("s").pending == 1
        fine = {**cookie(api), FORM_HEADER: form_token(api)}
        foreign = {**fine, "Origin": "http://evil.example"}
        assert api.http.post(path, json={}, headers=foreign).status_code == 403
        own = {**fine, "Origin": "http://127.0.0.1"}
        assert api.http.post(path, json={}, headers=own).status_code == 200
        assert api.db.look("s").pending == 2


def test_cookies_of_other_servers_on_the_machine_do_no_harm(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        ours = cookie(api)["Cookie"]
        name = api.app.state.ctx.guard.cookie
        for others in (
            f"{name}=old",
            "seen",
            'a={"x": "y z"}',
            "path=/",
            "perdure=of-another-port",
            "=;;",
            "a b=c; [x]=1",
        ):
            for header in (f"{others}; {ours}", f"{ours}; {others}"):
                assert api.http.get(f"{API}/sessions", headers={"Cookie": header}).status_code == 200, header


def test_who_signs_in_sees_the_page_they_came_for(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        wanted = "/session?id=a%2Fb&step=3"
        asked = api.http.get(f"{wanted}&token=wrong", headers=PAGE)
        for _ in range(2):
            assert asked.status_code == 401
            to = re.search(r'name="to" value="([^"]*)"', asked.text)
            assert to is not None
            assert html.unescape(to[1]) == wanted
            asked = api.http.post("/login", data={"token": "wrong", "to": wanted})
        fine = api.http.post("/login", data={"token": TOKEN, "to": wanted}, follow_redirects=False)
        assert fine.headers["location"] == wanted


def test_odd_forms_and_origins_are_refused_and_no_fault_of_the_server(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert api.http.post("/login", content="a=1&" * 200, headers=kind).status_code == 422
        assert api.http.post("/bulk", content="a=1&" * 3000, headers={**kind, **cookie(api)}).status_code == 403
        foreign = {**kind, **cookie(api), "Origin": "http://["}
        assert api.http.post("/bulk", content=f"form_token={form_token(api)}", headers=foreign).status_code == 403


def test_half_a_body_is_not_an_empty_one(tmp_path: Path):
    with asking(tmp_path) as api:
        made(api)
        path = f"{API}/sessions/s/cancel"
        headers = {"host": "127.0.0.1", "content-type": "application/json", **BEARER}
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "scheme": "http",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }  # fmt: skip
        news = [{"type": "http.request", "body": b'{"by": "a', "more_body": True}, {"type": "http.disconnect"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return news.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        assert api.http.portal is not None
        api.http.portal.call(api.app, scope, receive, send)
        assert api.db.look("s").pending == 0, "what was not said whole was done"
        assert sent == []


def test_a_form_of_a_page_carries_its_token_in_a_field(tmp_path: Path):
    guard = Guard(TOKEN)
    headers = {"cookie": f"{guard.cookie}={guard.cookie_value}", "host": "127.0.0.1"}
    guard.check("POST", headers, f"a=1&form_token={guard.form_token}".encode())
    with pytest.raises(Exception, match="form token"):
        guard.check("POST", headers, b"a=1&form_token=x")
    with pytest.raises(Exception, match="form token"):
        guard.check("DELETE", headers, None)


def test_without_any_token_programs_may_and_pages_of_others_may_not(tmp_path: Path):
    with asking(tmp_path, headers={}, token=None) as api:
        made(api)
        path = f"{API}/sessions/s/cancel"
        assert api.http.post(path, json={}).status_code == 200
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Referer": "http://x/"}):
            assert api.http.post(path, json={}, headers=headers).status_code == 403
        with_form = {"Origin": "http://127.0.0.1", FORM_HEADER: form_token(api)}
        assert api.http.post(path, json={}, headers=with_form).status_code == 200


def test_a_token_that_could_be_guessed_is_refused(tmp_path: Path):
    for token in ("", "short", "ü" * 20, "with a\nline break 12345"):
        with pytest.raises(InvalidInput, match="token"):
            Guard(token)


def test_every_answer_has_safe_headers(tmp_path: Path):
    with asking(tmp_path) as api:
        for path in ("/healthz", f"{API}/sessions", f"{API}/nothing", "/nothing"):
            headers = api.http.get(path).headers
            assert all(headers[name] == value for name, value in HEADERS.items())
            assert "unsafe-inline" not in headers["content-security-policy"]


AS_JSON = {"content-type": "application/json"}


def test_a_body_that_is_too_large_or_no_json_is_refused(tmp_path: Path):
    with asking(tmp_path) as api:
        made(api)
        path = f"{API}/sessions/s/messages"
        answer = api.http.post(path, json={"message": "x" * MAX_BODY})
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:perdure:error:too-large")

        def endless() -> Any:
            for _ in range(40):
                yield b"x" * 100_000

        assert api.http.post(path, content=endless(), headers={"content-type": "application/json"}).status_code == 413
        cases: list[tuple[bytes, str, int]] = [
            (b"{", "application/json", 400),
            (b'{"message": "\xff"}', "application/json", 400),
            (b'{"message": NaN}', "application/json", 400),
            (b'{"message": ' + b"[" * 100_000, "application/json", 400),
            (b"{}", "application/json", 422),
            (b"[]", "application/json", 422),
            (b'{"message": 1, "other": 2}', "application/json", 422),
            (b'{"message": 1, "message": 2}', "application/json", 422),
            (b'{"message": [{"a": 1, "a": ' + b"9" * 5000 + b"}]}", "application/json", 422),
            (b"message=1", "application/x-www-form-urlencoded", 415),
            (b'{"message": 1}', "text/plain", 415),
        ]
        for body, kind, status in cases:
            answer = api.http.post(path, content=body, headers={"content-type": kind})
            assert answer.status_code == status, (body[:40], answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        answer = api.http.post(path, content=b'{"message": {"to": "a", "to": "b"}}', headers=AS_JSON)
        assert '"to" was given twice' in answer.json()["detail"]
        assert api.http.post(path, content=b'{"message": [{"a": 1}, {"a": 1}]}', headers=AS_JSON).status_code == 202
        for body in (rb'{"message": "\ud800"}', rb'{"message": ["a\ud83dx"]}', rb'{"message": "\udc00"}'):
            answer = api.http.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert "half of a surrogate pair" in answer.json()["detail"]
        for query in ("limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "nothing=1", "status=odd", "owner=%ff"):
            assert api.http.get(f"{API}/sessions?{query}").status_code == 422, query
        assert api.http.get(f"{API}/sessions/%ff").status_code == 422
        answer = api.http.delete(f"{API}/sessions")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_what_nobody_expected_is_logged_and_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(sessions, "session_row", broken)
    with asking(tmp_path) as api, caplog.at_level(logging.ERROR, "perdure.server"):
        made(api)
        answer = api.http.get(f"{API}/sessions/s")
        assert answer.status_code == 500
        assert answer.json()["type"] == "urn:perdure:error:internal"
        assert "hunter2" not in answer.text
        assert "Traceback" not in answer.text
        assert "hunter2" in caplog.text


def test_every_type_of_problem_is_documented(tmp_path: Path):
    from pathlib import Path as P

    from perdure.server.problems import TITLES, catalogue

    text = (P(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    assert [t for t, _, _ in catalogue() if f"`{t}`" not in text] == []
    assert [t for t in TITLES if f"`urn:perdure:error:{t}`" not in text] == []


def test_the_document_names_every_row_of_the_table(tmp_path: Path):
    from perdure.server.api.openapi import TABLE
    from perdure.server.api.routing import PREFIX

    with asking(tmp_path, headers=BEARER) as api:
        document = api.http.get(f"{API}/openapi.json").json()
    listed = {(m.upper(), p) for p, methods in document["paths"].items() for m in methods}
    assert listed == {(e.method, PREFIX + e.path) for e in TABLE}
    names = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(names) == len(set(names))
    assert all(o["summary"] for methods in document["paths"].values() for o in methods.values())
    assert json.dumps(document)


def test_the_right_token_in_an_address_is_not_called_wrong(tmp_path: Path):
    with asking(tmp_path, headers={}) as api:
        for path in ("/", f"{API}/sessions"):
            answer = api.http.get(path, params={"token": TOKEN}, headers={"Accept": "*/*"})
            assert answer.status_code == 401
            assert answer.json()["type"] == "urn:perdure:error:token-in-address"
            assert "Authorization: Bearer" in answer.json()["detail"]
            assert "www-authenticate" in answer.headers
            wrong = api.http.get(path, params={"token": TOKEN + "x"}, headers={"Accept": "*/*"})
            assert (wrong.status_code, wrong.json()["type"]) == (401, "urn:perdure:error:unauthorized")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("Idempotency-Key", "a", "b"),
        ("Authorization", "Bearer wrong", f"Bearer {TOKEN}"),
        ("Authorization", f"Bearer {TOKEN}", "Bearer wrong"),
        ("Content-Type", "application/json", "text/plain"),
        (FORM_HEADER, "a", "b"),
    ],
)
def test_a_header_of_which_there_is_one_is_sent_once(tmp_path: Path, name: str, first: str, second: str) -> None:
    with asking(tmp_path) as api:
        others = [] if name == "Authorization" else [("Authorization", f"Bearer {TOKEN}")]
        headers = [*others, (name, first), (name, second), ("Cookie", "a=b"), ("Cookie", "c=d")]
        answer = api.http.post(f"{API}/sessions/s/messages", json={"message": "hi"}, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["type"] == "urn:perdure:error:repeated-header"
        assert name.lower() in answer.json()["detail"]
        assert api.db.kernel.store.look("s") is None
