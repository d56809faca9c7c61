"""The fleet: its board on every store that has one, and workers as real processes."""
