"""Answers that get lost: every operation, cut at every statement; the retry succeeds exactly once, or says so."""
