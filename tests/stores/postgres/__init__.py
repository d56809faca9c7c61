"""Tests of stores/postgres."""
