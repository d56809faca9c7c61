"""Where the file store finds its disk. It lives in :mod:`perdure.disk`, because blobs use it as well."""

from __future__ import annotations

from perdure.disk import Disk

__all__ = ["Disk"]
