"""Tests of campaigns/long_conversation."""
