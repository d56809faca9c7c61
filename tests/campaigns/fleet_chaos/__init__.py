"""Chaos: a fleet at work while its workers, its store, its disk and its clocks are made to fail."""
