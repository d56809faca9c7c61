"""The Redis store: one Redis or Valkey server. Read ``store`` first; ``lua/`` has the scripts that do the work."""
