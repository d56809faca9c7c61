"""What is remembered: values, the tracked document, deltas, merging, declared types, migrations. No I/O.

May import ``system`` and below. Read ``document`` first: a commit is what changed in it.
"""
