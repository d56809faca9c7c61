"""Ten writers race for one session, on every store: exactly one winner per version."""
