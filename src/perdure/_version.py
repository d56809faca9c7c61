"""The one place where the version of perdure is written."""

__version__ = "0.1.0"
