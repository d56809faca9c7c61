"""The agent runtime under test: the loop, its models, tools and people."""
