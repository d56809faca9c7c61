"""Whatever else happens to a SQLite file in the process that writes it: what was acknowledged is kept."""
