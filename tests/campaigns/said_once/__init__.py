"""Callers that repeat themselves, compete and are killed, at every door: each message is said once and answered."""
