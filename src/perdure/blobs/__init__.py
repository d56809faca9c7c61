"""Content-addressed bytes beside a store, for values too large for a commit. Each backend is imported when opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput
from perdure.system.urls import shown

if TYPE_CHECKING:
    from perdure.protocols import Blobs, Clock


def open_blobs(url: str, store_id: str, *, clock: Clock | None = None, **options: Any) -> Blobs:
    """Open the place of a store's blobs: a folder, a bucket, or a table of the server that is the store.

    ``store_id`` is the store they belong to: one place holds the blobs of one store.
    """
    scheme, separator, rest = url.partition("://")
    match scheme.lower() if separator else "":
        case "file":
            from perdure.blobs.local import LocalBlobs

            if not rest.strip("/"):
                raise InvalidInput(f"{url!r} names no folder for blobs: write file:///absolute/folder")
            return LocalBlobs(rest, clock=clock, **options)
        case "s3" | "gs" | "az":
            from perdure.blobs.object_storage import ObjectBlobs

            return ObjectBlobs(url, store_id, clock=clock, **options)
        case "postgresql" | "postgres":
            from perdure.blobs.postgres import PostgresBlobs

            return PostgresBlobs(url, clock=clock, **options)
        case "redis" | "rediss":
            from perdure.blobs.redis import RedisBlobs

            return RedisBlobs(url, clock=clock, **options)
        case _:
            raise InvalidInput(
                f"{shown(url)!r:.200} names no place for blobs: use s3://bucket/prefix, gs://, az://, file:///folder, "
                "postgresql://host/database or redis://host"
            )
