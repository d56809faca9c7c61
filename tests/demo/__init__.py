"""The demo: its shop, its script, its chaos, and that its reckoning finds what is wrong."""
