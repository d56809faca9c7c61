"""Stores: the contract that all keep, and what each promises beyond it."""
