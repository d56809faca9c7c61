"""Makes everything that happens to large histories happen to small ones: packs, snapshots, blobs."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import perdure.database

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def early(**constants: int) -> Iterator[None]:
    """Other values for constants of Perdure, wherever they were imported to."""
    modules = [module for name, module in sys.modules.items() if name.startswith("perdure.")]
    assert perdure.database in modules
    patches = [
        mock.patch.object(module, name, value)
        for name, value in constants.items()
        for module in modules
        if hasattr(module, name)
    ]
    assert len(patches) >= len(constants), "a constant has another name by now"
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
