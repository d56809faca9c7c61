"""The command line, its demo and the documentation."""
