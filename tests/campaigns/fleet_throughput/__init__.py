"""How the work of a fleet grows with the sessions that are open at once and with its workers, and what limits it."""
