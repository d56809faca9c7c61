"""The console in a real browser: a real server, real workers, and people who look and click."""
