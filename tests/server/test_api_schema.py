"""The OpenAPI document against the application: whatever is sent, no 5xx, and every answer as documented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import positive_data_acceptance

from perdure.server.api.openapi import document
from tests.server.asking import TOKEN, asking
from tests.server.listening import serving
from tests.server.test_api_steering import doubt, run
from tests.store_urls import url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.listening import Server

SLOW = [
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
]
KNOWN = ("s", "talk", "approve", "doubt", "a/b")
"""Sessions that are there: what is made up would never be found."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("schema")
    with asking(folder) as api:
        for name in ("s", "a/b"):
            with api.db.session(name, owner="ana") as s:
                for n in range(5):
                    s.vars["n"] = n
                    s.messages.append({"role": "user", "content": f"<b>{n}</b>"})
                    s.commit()
                s.fork("b", at=2)
                s.tag("t", at=3)
        run(folder, "talk", "hello")
        run(folder, "approve", "two")
        doubt(api, "doubt")
    with serving(url_of("sqlite", folder), folder, "tests.server.test_api_steering:desk") as server:
        yield server
        assert "Traceback" not in server.said()


def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """A session that is there, unless the id was meant to be wrong, or once in a while."""
    if path_parameters and isinstance(name := path_parameters.get("session"), str) and name[:500] == name:
        path_parameters["session"] = (*KNOWN, name)[len(name) % (len(KNOWN) + 1)]
    return path_parameters


def documented() -> Any:
    """The document that the server serves. Streams do not end: they have tests of their own."""
    found = schemathesis.openapi.from_dict(document()).exclude(path_regex="/events$")
    found.hook(map_path_parameters)
    # The token is in every request; those without it have tests of their own.
    found.config.generation.update(with_security_parameters=False)
    # A body that is too large is refused before anybody looks whether it fits, which is documented, too.
    refused = found.config.checks.negative_data_rejection
    refused.expected_statuses = [*refused.expected_statuses, "413"]
    return found


schema = documented()


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
def test_whatever_is_sent_the_answer_is_as_documented(case: Any, served: Server):
    # What fits the shape may still be refused: a branch that is not there, a cursor that is none.
    case.call_and_validate(
        base_url=served.base,
        headers={"Authorization": f"Bearer {TOKEN}"},
        excluded_checks=[positive_data_acceptance],
    )
