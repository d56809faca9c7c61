"""Calls of tools: each is written down before it is made, and its outcome before anybody is told."""
