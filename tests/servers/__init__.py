"""Real servers for tests, started from pip packages on first use, shared by all test processes, gone afterwards.

``postgres()``, ``valkey()`` and ``objects()`` give a running server of the whole test run; ``start_*`` in the modules
beside give private ones that a test may kill, restart or replicate.
"""

from tests.servers.shared import objects, postgres, redis, valkey

__all__ = ["objects", "postgres", "redis", "valkey"]
