"""Locks of our SQLite files that nothing else in the process can drop, and a look at whether they are still ours.

The work is done in C (``own_locks.c``, which says why); here it is found and told which files are ours. Where it was
not built, or the system has no such locks, files are locked as SQLite does it by itself, and :data:`WEAKNESS` says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import apsw

from perdure.errors import ForkedProcess, Unavailable

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own_locks.so")


def _load() -> tuple[Any, str]:
    """The library, its functions in SQLite's table of system calls; or why there is none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None, "it was installed without its compiled part, own_locks"
    if number := library.perdure_prepare():
        return None, f"this system has no locks of open files ({os.strerror(number)})"
    calls = (ctypes.c_void_p * 9).in_dll(library, "perdure_system_calls")
    # The table belongs to all of SQLite's own file systems; this one is only a way to reach it.
    table = apsw.VFS("perdure-own-locks", base="unix")
    for name, function in zip(calls[::2], calls[1::2], strict=False):
        if name and not table.xSetSystemCall(ctypes.string_at(name).decode(), function):
            raise Unavailable("SQLite does not let its system calls be replaced: install apsw from its wheel")
    table.unregister()
    library.perdure_own.argtypes = library.perdure_astray.argtypes = [ctypes.c_char_p]
    return library, ""


_library, WEAKNESS = _load()
"""Why locks are only SQLite's; empty when they are ours."""
