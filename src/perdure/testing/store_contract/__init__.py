"""The contract of stores as a test suite: subclass :class:`StoreContract`, say how your store is opened, run pytest.

::

    from perdure.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        scheme = "mine"

        def open_store(self, folder, name, clock):
            return MyStore(folder / name, clock=clock)

Each module is one part of the contract, and may be run alone: ``class TestMyLeases(LeasesContract)``.
"""

from __future__ import annotations

import pkgutil

from perdure.errors import MissingExtra

try:
    import pytest
except ImportError as error:
    raise MissingExtra("pytest", "testing", error) from None

# Before they are imported: a failing assertion shows what was compared.
pytest.register_assert_rewrite(*(f"{__name__}.{part.name}" for part in pkgutil.iter_modules(__path__)))

from perdure.testing.store_contract.agents import AgentsContract
from perdure.testing.store_contract.append import AppendContract
from perdure.testing.store_contract.changes import ChangesContract
from perdure.testing.store_contract.contract import BOARD, CACHE, LIVE, MACHINES_CLOCK, Contract, MakeStore
from perdure.testing.store_contract.dump import DumpContract
from perdure.testing.store_contract.inbox import InboxContract
from perdure.testing.store_contract.leases import LeasesContract
from perdure.testing.store_contract.listing import ListingContract
from perdure.testing.store_contract.retention import RetentionContract
from perdure.testing.store_contract.rewrite import RewriteContract
from perdure.testing.store_contract.session_status import StatusContract
from perdure.testing.store_contract.sessions import SessionsContract

__all__ = [
    "BOARD", "CACHE", "LIVE", "MACHINES_CLOCK", "AgentsContract", "AppendContract", "ChangesContract",
    "Contract", "DumpContract", "InboxContract", "LeasesContract", "ListingContract", "MakeStore", "RetentionContract",
    "RewriteContract", "SessionsContract", "StatusContract", "StoreContract",
]  # fmt: skip


class StoreContract(
    AppendContract, ChangesContract, InboxContract, LeasesContract, SessionsContract, ListingContract, StatusContract,
    AgentsContract, RewriteContract, RetentionContract, DumpContract,
):  # fmt: skip
    """The whole contract of :class:`perdure.protocols.Store`."""
