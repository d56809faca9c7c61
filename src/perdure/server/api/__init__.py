"""The HTTP API: one module per group of paths, one table of routes, and the OpenAPI document made from it."""
