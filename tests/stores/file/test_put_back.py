"""The files of a session are removed, or put back as they were, under whoever writes it: that is told as what it is."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure import TailLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _put_back(store: Path, before: Path) -> None:
    (log,) = store.glob("sessions/*/*/log")
    os.replace(before, log)


def _remove(store: Path, _: Path) -> None:
    (log,) = store.glob("sessions/*/*/log")
    shutil.rmtree(log.parent)


def _rename(store: Path, _: Path) -> None:
    store.rename(store.with_name("elsewhere"))


@pytest.mark.parametrize(("happens", "left"), [(_put_back, 1), (_remove, None), (_rename, None)])
def test_what_was_acknowledged_and_is_gone_is_no_conflict(
    tmp_path: Path, happens: Callable[[Path, Path], None], left: int | None
) -> None:
    store, before = tmp_path / "store", tmp_path / "before"
    with perdure.open(f"file://{store}") as db:
        s = db.session("s").__enter__()
        s.vars["n"] = 1
        s.commit()
        (log,) = store.glob("sessions/*/*/log")
        shutil.copy(log, before)
        s.vars["n"] = 2
        s.commit()
        happens(store, before)
        s.vars["n"] = 3
        with pytest.raises(TailLost, match="its files were removed or put back") as told:
            s.commit()
    assert (told.value.step, told.value.left) == (2, left)
