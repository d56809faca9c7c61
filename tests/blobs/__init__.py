"""Blobs on every backend: one contract, what a bucket may do to it, and streams of large values."""
