"""Content-addressed bytes beside a store, for values too large for a commit. One module for each backend."""
