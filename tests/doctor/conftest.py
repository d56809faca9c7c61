"""The doctor is tested as people run it: by its command."""

from tests.cli.conftest import command

__all__ = ["command"]
