"""What ``perdure bench`` measures and how it says it."""
