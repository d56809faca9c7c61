"""The PostgreSQL store: any number of machines. Read ``store`` first; ``sql/`` has its tables and functions."""
