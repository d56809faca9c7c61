"""What keeps a store in order: packs and snapshots, retention, blob collection, verify and witness, backup and copy.

May import ``session`` and below. Nothing here changes what a session says, except that a
loss that somebody accepted is written down in it (``lost_effects``). Read ``snapshots`` first.
"""
