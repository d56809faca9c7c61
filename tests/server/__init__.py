"""The server: its API, its events, and its pages in a real browser."""
