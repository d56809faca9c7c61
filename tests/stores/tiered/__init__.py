"""The tiered store when its hot tier is well, old, wrong, slow, full or gone: nothing that counts depends on it."""
