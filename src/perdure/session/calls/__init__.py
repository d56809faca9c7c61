"""Calls of tools: each is written down before it is made, and its outcome before anybody is told.

Read ``calls`` first, then ``attempts``, the way of one call to its outcome. From top to bottom, each knows those below:

- ``calls`` (one at a time), ``calls_of_answer`` (those of a model's answer), ``reads`` (tools that only read)
- ``attempts`` makes them, ``lookups`` finds out what became of one, ``same_calls`` that it was made before or elsewhere
- ``approvals`` asks people; ``decisions`` is what waits for them
- ``effects`` writes the records; ``records`` is how they are read, by everybody
- ``other_branches``, ``read_cache``, ``late_returns``, ``retries``, ``calls_of_run``, ``schemas``: each one question

What a tool is, and what its exceptions mean, is in ``tools``; the journal and the inbox lie below, too.
"""
