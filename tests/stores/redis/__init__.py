"""Tests of stores/redis."""
