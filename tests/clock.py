"""The clock of the tests, which is the one that users' tests get, too."""

from perdure.testing.clock import FakeClock

__all__ = ["FakeClock"]
