"""What keeps a store in order: compaction, retention, blob collection, verify and witness, backup and copy.

May import ``session`` and below. Nothing here changes what a session says. Read ``compaction`` first.
"""
