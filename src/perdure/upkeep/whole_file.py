"""Writing a file that is there as a whole or not at all: it gets its name when all of it is durable."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

from perdure.system import faults
from perdure.system.disk import FILE_MODE, Disk, explain

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """A file to write to. If that fails, whatever had the name before still has it, and nothing is left behind."""
    target = os.path.abspath(path)
    unfinished = f"{target}.{os.getpid()}.tmp"
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(fd, "wb") as file:
                yield file
                file.flush()
                faults.point("whole_file.before_fsync")
                os.fsync(file.fileno())
            faults.point("whole_file.before_rename")
            os.replace(unfinished, target)
        except BaseException:
            os.unlink(unfinished)
            raise
        Disk().fsync_folder(os.path.dirname(target))
    except OSError as e:
        raise explain(e, target) from e
