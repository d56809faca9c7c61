"""Single modules, without a store or with the one in memory."""
