"""Connections to PostgreSQL, shared by the store and the blobs that live there: where, how, and what errors mean."""

from perdure.errors import MissingExtra

try:
    import psycopg as psycopg
except ImportError:
    raise MissingExtra("psycopg", "postgres") from None
