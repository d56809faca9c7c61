"""The doctor: whether a machine keeps what a store promises, and whether somebody's app survives being killed.

A part of the library that returns findings (``findings``); printing and exit codes are the command line's. Read
``machine`` for the checks of this machine and a store, ``app`` for the runs of an app and ``app_checks`` for what they
mean. ``commit_process`` and ``app_process`` are the child processes that are killed, and ``instrumentation`` is how an
app is watched from inside one. It may import everything but ``bench`` and ``cli``.
"""
