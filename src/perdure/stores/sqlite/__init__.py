"""The SQLite store: one file, any number of processes on one machine. Read ``store`` first; ``sql/`` has its tables."""
