"""Tests of campaigns/rolling_deploy."""
