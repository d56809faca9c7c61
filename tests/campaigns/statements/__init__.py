"""What people are told of a session, held against what then happens, in every situation that can be reached."""
