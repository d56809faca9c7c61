"""Where tests put blobs: every backend, in a folder or on one of the run's servers."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import tests.servers
from perdure.blobs import open_blobs
from perdure.blobs.memory import MemoryBlobs
from perdure.stores import open_store
from tests.servers.objects import objects_options
from tests.store_urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.protocols import Blobs, Clock
    from tests.servers.process import Running

KINDS = ("memory", "local", "object", "postgres", "redis")
BUCKET = "perdure-tests"


def variables(server: Running) -> dict[str, str]:
    """What tells any process how to reach the server, as people set it."""
    return {name.upper(): value for name, value in objects_options(server).items()}


def bucket_url(prefix: str, server: Running | None = None, bucket: str = BUCKET) -> str:
    """The URL of a prefix in a bucket that is there, on the run's server unless told otherwise."""
    from obstore import put
    from obstore.store import S3Store

    config: Any = objects_options(server or tests.servers.objects())
    # This server makes a bucket with its first object.
    put(S3Store(bucket, config=config), "made", b"")
    return f"s3://{bucket}/{prefix}"


def unique(folder: Path) -> str:
    """A prefix of a test's own."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:20]


def blobs_of(kind: str, folder: Path, clock: Clock, store_id: str = "store-1") -> Blobs:
    """The blobs of a kind; the same folder gives the same ones."""
    match kind:
        case "memory":
            return MemoryBlobs.named(str(folder), clock)
        case "local":
            return open_blobs(f"file://{folder}/blobs", store_id, clock=clock)
        case "object":
            config = objects_options(tests.servers.objects())
            return open_blobs(bucket_url(unique(folder)), store_id, clock=clock, config=config)
        case _:
            # Its blobs lie among the tables of the store.
            open_store(url_of(kind, folder), clock=clock).close()
            return open_blobs(url_of(kind, folder), store_id, clock=clock)
