"""How long it took until somebody else went on with what a struck worker had in mid-step."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from perdure.demo.chaos import FREEZE, KILL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.demo.chaos import Hit
    from perdure.demo.crowd import Talk


class Recoveries:
    """Follows the hits of the night until each session has moved on; cheap enough to be asked all the time."""

    def __init__(self, talks: Mapping[str, Talk]) -> None:
        self._talks = talks
        self._seen = 0
        self._open: list[Hit] = []
        self.times: list[float] = []
        """Seconds from SIGKILL to the next commit of the session, which is another worker's."""
        self.taken_over = 0
        """Sessions that somebody else went on with while their worker was frozen."""

    def update(self, hits: Sequence[Hit]) -> None:
        """Take note of new hits, and of commits that were seen meanwhile."""
        fresh = hits[self._seen :]
        self._seen += len(fresh)
        self.taken_over += sum(h.kind == FREEZE and self._went_on(h) for h in fresh)
        still: list[Hit] = []
        for hit in (*self._open, *(h for h in fresh if h.kind == KILL)):
            # The dead could not write any more by then, whatever was on its way.
            at = next((c.at for c in self._talks[hit.session].commits if c.at > hit.over), None)
            if at is None:
                still.append(hit)
            else:
                self.times.append((at - hit.at) / 1000)
        self._open = still

    def _went_on(self, hit: Hit) -> bool:
        return any(hit.at < c.at < hit.over for c in self._talks[hit.session].commits)

    @property
    def missing(self) -> int:
        """Sessions that were cut and have not moved since."""
        return len(self._open)

    @property
    def resumes(self) -> int:
        """Runs that were cut, or whose worker was frozen, and that another worker took up."""
        return len(self.times) + self.taken_over

    @property
    def median(self) -> float | None:
        """In seconds."""
        return statistics.median(self.times) if self.times else None

    @property
    def slowest(self) -> float | None:
        """In seconds."""
        return max(self.times, default=None)
