"""Stored bytes are changed at random; what a reader then gets is judged."""
