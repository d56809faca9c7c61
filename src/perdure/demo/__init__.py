"""The demo: a night of support conversations over a real shop, with workers that are killed, evicted and frozen."""
