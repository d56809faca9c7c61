"""Real kill -9, lost power and changed bytes."""
