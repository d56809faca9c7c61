"""The file store: a folder of append-only logs. Read ``store`` first; a session's log is in ``log`` and ``records``."""
