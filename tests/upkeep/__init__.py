"""Upkeep: retention, pruning, collection of blobs, verification, copies and backups, on every embedded store."""
