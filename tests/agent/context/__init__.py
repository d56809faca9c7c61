"""The window, the compactor and large results."""
