"""A shop in another process: it keeps a ledger by order, and deduplicates only by the keys it is sent."""
