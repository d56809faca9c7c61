"""The words all shapes are made of: names, places, cursors, and how long they may be."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from perdure.model import Status

MAX_PAGE = 1000
MAX_MS = 1 << 53

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=200)]
Reason = Annotated[str, Meta(max_length=2000)]
SessionId = Annotated[str, Meta(min_length=1, max_length=512)]
Ms = Annotated[int, Meta(ge=0, le=MAX_MS)]
Step = Annotated[int, Meta(ge=1, le=MAX_MS)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(min_length=1, max_length=4000)]
Place = Annotated[
    str, Meta(min_length=1, max_length=200, description="A step, a tag, a branch, or (the beginning of) an id.")
]
StatusName = Literal[
    "idle", "running", "sleeping", "waiting_approval", "waiting_result", "in_doubt", "paused", "cancelled", "failed",
    "closed", "expired",
]  # fmt: skip
By = Annotated[str, Meta(min_length=1, max_length=200, description="Who decides; it is recorded.")]

assert set(StatusName.__args__) == set(Status)  # pyright: ignore


class Shape(msgspec.Struct, kw_only=True):
    """What is answered."""


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is asked for: names that nobody knows are refused."""


class Ok(Shape):
    """It was done."""

    ok: bool = True
