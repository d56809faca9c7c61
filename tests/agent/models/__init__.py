"""Model clients: against a server with OpenAI's API that is not ours, and against canned bytes where it cannot break."""
