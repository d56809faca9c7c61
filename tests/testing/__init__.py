"""The kit for users' tests and others' stores."""
