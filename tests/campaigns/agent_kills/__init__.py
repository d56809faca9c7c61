"""Agents killed with SIGKILL at every boundary of their loop, and what the shop's ledger says afterwards."""
