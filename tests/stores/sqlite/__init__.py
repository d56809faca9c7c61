"""The SQLite store beyond the contract: its file, its locks, its faults."""
