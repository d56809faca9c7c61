"""What an opening finds of the past: a new session, one to resume, one that expired or was deleted."""
