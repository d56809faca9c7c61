"""All rows of the API's table, put together."""

from __future__ import annotations

from perdure.server.api import approvals, branches, events, openapi, sessions, steering
from perdure.server.api.routing import Endpoint

TABLE: list[Endpoint] = [
    *sessions.ENDPOINTS,
    *steering.ENDPOINTS,
    *branches.ENDPOINTS,
    *approvals.ENDPOINTS,
    *events.ENDPOINTS,
]
TABLE.append(openapi.endpoint(TABLE))
