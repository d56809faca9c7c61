"""The doctor is a command: its tests run it as those of the command line do."""

from tests.cli.conftest import command

__all__ = ["command"]
