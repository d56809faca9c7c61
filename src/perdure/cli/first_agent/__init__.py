"""What ``perdure new`` writes: these files are copied as they are, but for the agent's name."""
