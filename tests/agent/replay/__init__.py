"""Tests of agent/replay."""
