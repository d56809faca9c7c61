"""How a commit becomes bytes: codec, keys, sealed commits, packs and snapshots. Pure, no I/O.

May import ``state`` and below. Read ``commit`` first, then ``codec``.
"""
