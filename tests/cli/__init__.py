"""The command line and the documentation."""
