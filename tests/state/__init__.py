"""The state in memory: values, document, delta, declared types and migrations."""
