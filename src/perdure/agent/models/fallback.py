"""Models that stand in for each other: which one of a list is asked next, and what becomes of one that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import ModelError, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agent.models import ChatModel
    from perdure.protocols import Clock

REST = 60_000
"""Ms for which a model that could not answer is passed over, in one attempt at a run."""


class Fallback:
    """Which of its models an agent asks, in one attempt at a run: the first one that is not known to fail.

    It lives no longer than the attempt. What was answered is recorded with the name of who answered it, so that nobody
    is asked again for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._resting: dict[int, int] = {}
        """By identity, until when."""
        self._failed: dict[int, tuple[str, ModelError]] = {}
        """Of the request that has no answer yet."""

    def next(self, models: Sequence[ChatModel]) -> ChatModel:
        """Who is asked now."""
        left = [m for m in models if id(m) not in self._failed] or list(models)
        now = self._clock.monotonic()
        return next((m for m in left if self._resting.get(id(m), 0) <= now), left[0])

    def failed(self, models: Sequence[ChatModel], model: ChatModel, error: ModelError) -> bool:
        """That model has no answer; whether there is another one to ask."""
        self._failed[id(model)] = (model.name, error)
        self._resting[id(model)] = self._clock.monotonic() + REST
        return any(id(m) not in self._failed for m in models)

    def all_failed(self, last: ModelError) -> ModelError:
        """The error when nobody could answer, with what each of them said."""
        failed, self._failed = list(self._failed.values()), {}
        if len(failed) < 2:
            return last
        told = "; ".join(f"{name}: {error}" for name, error in failed)
        # To come back later helps if it helps with one of them.
        kind = ModelUnavailable if any(isinstance(e, ModelUnavailable) for _, e in failed) else type(last)
        return kind(f"none of {len(failed)} models could answer: {told}")

    def answered(self) -> None:
        """There is an answer: the next request begins anew."""
        self._failed = {}
