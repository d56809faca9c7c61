"""The session layer as its users meet it: state, calls, runs, branches, approvals."""
