"""What holds when state is replicated: a real streaming replica, promoted in mid-run."""
