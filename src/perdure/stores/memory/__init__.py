"""The store in memory: for tests, examples and work that need not outlive the process."""
