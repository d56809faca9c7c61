"""Reading the past without a lease: hydrating a state, the lines of a session, checkpoints, streams of blobs.

May import stores, blobs and below. Read ``hydrate`` first.
"""
