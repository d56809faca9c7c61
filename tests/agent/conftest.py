"""Commands are run here as the tests of the command line run them."""

from tests.cli.conftest import command

__all__ = ["command"]
