"""Tests of the machine and the process."""
