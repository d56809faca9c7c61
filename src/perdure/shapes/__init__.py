"""The JSON that programs read: one shape per noun, and the one function that makes it from the library's object.

The command line (``--json``), HTTP and the documentation all use these. Times are RFC 3339 in UTC with milliseconds,
durations are numbers of seconds whose names end in ``_seconds``, names are snake_case; only the interrupt is written as
its protocol, AG-UI, has it. May import everything up to ``fleet``. Read first: ``basics``, then ``sessions``.
"""
