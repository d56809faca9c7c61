"""How a commit becomes bytes: sealed commits, keys, packs and snapshots. Pure, no I/O.

May import ``state`` and below. Read ``codec`` first, then ``packs``.
"""
