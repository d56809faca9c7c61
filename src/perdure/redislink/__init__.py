"""The way to a Redis or Valkey server, for the store and the blobs alike: connections, scripts, retries, words.

It knows nothing of what is stored. What the server says is put into our errors in ``replies``; nothing here or
there ever shows a password.
"""

from perdure.redislink.link import Link, Lost
from perdure.redislink.scripts import Script, pack
from perdure.redislink.server import Server, check, look_at, prefix_of

__all__ = ["Link", "Lost", "Script", "Server", "check", "look_at", "pack", "prefix_of"]
