"""Model clients: against a server that is not ours, and against canned bytes where that one cannot break."""
