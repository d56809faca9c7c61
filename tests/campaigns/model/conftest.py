"""What the tests of this folder share: packs, snapshots and blobs after a few small commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.model.early import early

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")
def everything_happens_early() -> Iterator[None]:
    """Not after hundreds of large commits, but at once."""
    with early(PACK_ROWS=5, PACK_MIN=2, PACK_BYTES=1500, BLOB_OVER=256):
        yield
