"""The databases of the session tests, here too."""

from tests.session.conftest import clock, db, open_db, url

__all__ = ["clock", "db", "open_db", "url"]
