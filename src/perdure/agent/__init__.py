"""The agent runtime: a loop that cannot repeat itself, over models, tools and people."""
