"""The tiered store: a cold store that is the truth, and a Redis in front of it that makes loads faster."""
