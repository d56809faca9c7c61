"""Whose word counts for where a session stands: one meaning for every store. No I/O here.

Status, error and agent of a session are those of the branch ``main``: what runs on another branch must not hide that
something waits there. Only while there is no ``main`` the newest commit of any branch speaks for the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.model import MAIN

if TYPE_CHECKING:
    from perdure.model import Dump, SessionRow


def speaks(branch: str, has_main: bool) -> bool:
    """Whether a commit on this branch says where its session stands."""
    return branch == MAIN or not has_main


def restored_row(dump: Dump) -> SessionRow:
    """The row of a dump, with the status and the error of main's head.

    A dump that an earlier version made may tell those of the newest commit of any branch, or no error at all.
    """
    row = dump.row
    main = next((head for head in row.heads if head.branch == MAIN), None)
    for stored, shown in reversed(dump.rows):
        if main is None or (stored.line, stored.step) == (main.line, main.step):
            return row._replace(status=str(shown.get("status", row.status)), error=str(shown.get("error", row.error)))
    return row
