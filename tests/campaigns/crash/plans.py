"""Everything the crash suite does to a store, by name."""

from __future__ import annotations

from tests.campaigns.crash import session_plans, upkeep_plans
from tests.campaigns.crash.planning import DOING, perform, take_up

__all__ = ["DOING", "perform", "session_plans", "take_up", "upkeep_plans"]
