"""All rows of the API's table, put together."""

from __future__ import annotations

from perdure.server.api import approvals, branches, events, history, openapi, sessions, steering
from perdure.server.api.routing import Endpoint

TABLE: list[Endpoint] = [
    *sessions.ENDPOINTS,
    *steering.ENDPOINTS,
    *history.ENDPOINTS,
    *branches.ENDPOINTS,
    *approvals.ENDPOINTS,
    *events.ENDPOINTS,
]
TABLE.append(openapi.endpoint(TABLE))
