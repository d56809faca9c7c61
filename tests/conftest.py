"""What all tests share: how hypothesis searches, and that no server outlives the run."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from tests.servers import shared

# Disks and shared cores make single examples slow at times, so no deadline; a failure prints its blob.
settings.register_profile("perdure", deadline=None, print_blob=True)
settings.load_profile("perdure")


def pytest_configure(config: pytest.Config) -> None:
    """Say where servers are written down before test processes are started."""
    # A run in the background of a script is born deaf to interrupts, and so would be all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers once the last test process is done."""
    shared.end()
