"""The window, the compactor, rebuilt requests, replay and upgrades."""
