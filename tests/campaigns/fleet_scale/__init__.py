"""Very many short sessions on workers that are killed all the time: every one that was interrupted must be resumed."""
