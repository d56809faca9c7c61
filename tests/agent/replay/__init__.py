"""Replay: a recorded run is lived through again, as it was or with other parts."""
