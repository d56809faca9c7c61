"""The Redis store beyond the contract: its scripts, its settings, its faults, on Valkey and on Redis."""
