"""Ctrl-C at any moment into programs that go on after it: what was acknowledged is kept, once, and nothing hangs."""
