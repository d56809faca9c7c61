"""The file store's own promises, beyond the contract that all stores keep."""
