"""A recorded session run again: read from its beginning, replayed without a network, or run on with the real model."""
