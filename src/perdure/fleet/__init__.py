"""The fleet: workers that take sessions with something to do, and take over what a dead one left."""
