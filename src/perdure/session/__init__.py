"""The session handle and its parts: journal, inbox, branches, runs, and calls of tools.

May import ``history`` and below. Read ``handle`` first, then ``journal``: the one way a checkpoint gets written. Two folders
have what is about tools: ``tools`` says what a tool is, ``calls`` makes calls of them, with effects and approvals.

What is said to a session from outside: ``posting``, ``inbox``, ``waiting_messages``, ``wakes``, ``taken`` (which inputs are
taken). Whoever is told that it has something to do: ``handover``. What a person can type for it: ``actions``.
"""
