"""Tests of stores/sqlite."""
