"""Connections to PostgreSQL and Redis, for stores, blobs and boards alike, and what the servers' errors mean.

They know nothing of what is stored, and no message of theirs carries a password or a value.
"""
