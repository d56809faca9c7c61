"""Tests of database."""
