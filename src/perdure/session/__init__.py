"""The session handle and its parts: journal, inbox, effects, approvals, calls, branches, runs.

May import ``history`` and below. Read ``handle`` first, then ``journal``: the one way a checkpoint gets written.
"""
