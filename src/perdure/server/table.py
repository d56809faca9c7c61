"""All rows of the API's table, put together."""

from __future__ import annotations

from perdure.server import branches, events, openapi, past, people, sessions, steering
from perdure.server.routing import Endpoint

TABLE: list[Endpoint] = [
    *sessions.ENDPOINTS,
    *steering.ENDPOINTS,
    *past.ENDPOINTS,
    *branches.ENDPOINTS,
    *people.ENDPOINTS,
    *events.ENDPOINTS,
]
TABLE.append(openapi.endpoint(TABLE))
