"""``perdure doctor``: whether a machine keeps what a store promises, and whether somebody's app survives being killed.

It returns findings; what a person is shown is decided in ``cli``. Read ``findings`` first, then ``app``.
"""
