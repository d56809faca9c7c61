"""A fleet that is replaced by its next version under load, and tools that take long."""
