"""The web console: pages for people over one database. Everything is rendered on the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from perdure.server.console.approvals import Deciding
from perdure.server.console.branches import Branching
from perdure.server.console.bulk import BulkPages
from perdure.server.console.fleet import FleetPage
from perdure.server.console.rendering import Console
from perdure.server.console.session import SessionPage
from perdure.server.console.sessions import Listing
from perdure.server.console.store import StorePage
from perdure.server.console.updates import Live

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from perdure.server.app import Ctx


class _Static(StaticFiles):
    """Files that come with the console; their addresses carry the version, so browsers may keep them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def routes(ctx: Ctx) -> list[BaseRoute]:
    """All pages, for a server to mount at "/"."""
    console = Console(ctx)
    listing, session, branching = Listing(console), SessionPage(console), Branching(console)
    deciding, bulk = Deciding(console), BulkPages(console)
    fleet, store, live = FleetPage(console), StorePage(console), Live(console)
    pages = {
        "/": listing.page,
        "/session": session.page,
        "/session/at": session.at,
        "/session/top": session.top,
        "/session/earlier": session.earlier,
        "/session/request.json": session.request_json,
        "/session/branch": branching.form,
        "/compare": branching.compare,
        "/approvals": deciding.approvals,
        "/in-doubt": deciding.doubts,
        "/fleet": fleet.page,
        "/store": store.page,
        "/nav": console.nav,
    }
    deeds = {
        "/session/message": session.message,
        "/session/branch": branching.create,
        "/session/run": branching.run,
        "/approvals": deciding.decide,
        "/in-doubt": deciding.resolve,
        "/bulk": bulk.preview,
        "/bulk/do": bulk.act,
        "/fleet/drain": fleet.drain,
        "/fleet/hold": fleet.hold,
        "/store/verify": store.verify,
        "/store/sweep": store.sweep,
    }
    return [
        *(Route(path, console.guarded(page), methods=["GET"]) for path, page in pages.items()),
        *(Route(path, console.guarded(deed), methods=["POST"]) for path, deed in deeds.items()),
        Route("/live", live.stream, methods=["GET"]),
        Mount("/static", _Static(directory=Path(__file__).parent / "static")),
    ]
