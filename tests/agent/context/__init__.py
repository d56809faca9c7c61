"""The window, the janitor, rebuilt requests, replay and upgrades."""
