"""The store: how much it holds and grows, what it promises, what its time has run out for, and whether it is intact."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import PerdureError
from perdure.history.expiry import expired as has_expired
from perdure.model import Status
from perdure.server.console.drawing import curve_of
from perdure.server.console.rendering import Pages, by_status

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.model import SessionRow, Usage
    from perdure.server.console.rendering import Console
    from perdure.upkeep.verify import Report

log = logging.getLogger("perdure.server")
KEPT = 240
EXPIRED_SHOWN = 1000


class Check(NamedTuple):
    """A check of everything that is stored, under way or done."""

    done: int = 0
    """Sessions so far."""
    total: int = 0
    began: int = 0
    ended: int = 0
    report: Report | None = None
    problem: str = ""

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return bool(self.began) and not self.ended


def _is_free(row: SessionRow) -> bool:
    """Whether nothing can keep it once its time is over, by its row alone."""
    return not row.pending and row.status == Status.IDLE and len(row.heads) == 1


class StorePage(Pages):
    """The page of the store."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._sizes: deque[tuple[int, Usage]] = deque(maxlen=KEPT)
        self._check = Check()
        self._task: asyncio.Task[None] | None = None

    async def page(self, request: Request) -> Response:
        """Sizes, growth, promise, retention and integrity."""
        ctx, now = self._ctx, self._console.now
        store = ctx.db.kernel.store
        usage = await ctx.blocking(store.usage)
        if not self._sizes or now - self._sizes[-1][0] > 1000:
            self._sizes.append((now, usage))
        expired = await ctx.blocking(self._expired)
        statuses = by_status(await ctx.db.counts())
        parts = {"check": "check.html", "sizes": "store_sizes.html"}
        template = parts.get(request.headers.get("hx-target", ""), "store.html")
        first, last = self._sizes[0], self._sizes[-1]
        return self._console.page(
            request, template, usage=usage, promise=store.promise, check=self._check,
            expired=len(expired), aside=max(0, usage.sessions - sum(statuses.values())),
            statuses=sorted(statuses.items(), key=lambda s: -s[1]), epoch=store.epoch,
            store_id=store.id, growth=curve_of([u.bytes for _, u in self._sizes]), grown=last[1].bytes - first[1].bytes,
            steps=last[1].checkpoints - first[1].checkpoints, since=first[0], most_expired=EXPIRED_SHOWN,
        )  # fmt: skip

    def _expired(self) -> list[SessionRow]:
        """What the next sweep removes, as far as it is counted: an input that waits or a call in doubt may keep one."""
        over = self._kernel.store.sessions(expired=True, limit=EXPIRED_SHOWN)
        return [row for row in over if _is_free(row) or has_expired(self._kernel, row)]

    async def verify(self, request: Request) -> Response:
        """Begin to read and check everything."""
        if not self._check.running:
            usage = await self._ctx.blocking(self._kernel.store.usage)
            self._check = Check(0, usage.sessions, self._console.now)
            self._task = asyncio.create_task(self._verify())
        return self._console.see(request, "/store")

    async def sweep(self, request: Request) -> Response:
        """Remove what the time has run out for."""
        swept = await self._ctx.db.sweep()
        said = f"{swept.removed} removed"
        if swept.busy:
            said += f", {len(swept.busy)} are being written"
        return self._console.see(request, "/store", told=f"{said}.")

    async def _verify(self) -> None:
        def on(_: str, done: int) -> None:
            self._check = self._check._replace(done=done)

        end: dict[str, Any] = {}
        try:
            end["report"] = await self._ctx.db.verify(progress=on)
        except PerdureError as e:
            end["problem"] = str(e)
        except Exception:
            # Whoever looks at the page must not wait for the end of a check that has none.
            log.exception("a check of the store failed")
            end["problem"] = "Something unexpected went wrong; the server's log tells more."
        self._check = self._check._replace(ended=self._console.now, **end)
