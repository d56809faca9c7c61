"""The session handle and its parts: journal, inbox, branches, runs, and calls of tools.

May import ``history`` and below. Read ``handle`` first, then ``journal``: the one way a checkpoint gets written. Two
folders are about tools: ``tools`` says what a tool is, ``calls`` makes calls of them, with effects and approvals.

What is said to a session from outside: ``posting``, ``inbox``, ``waiting_messages``, ``wakes``, and ``taken``: what of
it was taken. Waking a session that has something to do: ``handover``. What to type for it: ``actions``.
"""
