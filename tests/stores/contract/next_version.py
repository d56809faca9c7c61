"""The next version of the tables, made up: a script that adds one. Many processes import this, so it needs little."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perdure.stores.sqlite.tables import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

NEXT = VERSION + 1
UPGRADES = {
    "sqlite": f"create table newer (x); update meta set value = {NEXT} where key = 'schema';",
    "postgres": f"create table $schema.perdure_newer (x integer); update $schema.perdure_meta set version = {NEXT};",
}
"""What leads to the next version, for each kind of store."""


def know_the_next_version(kind: str, set_attribute: Callable[[Any, str, Any], None], more: str = "") -> None:
    """Let a process know how to make the next version."""
    tables = importlib.import_module(f"perdure.stores.{kind}.tables")
    script = tables._script

    def newer(version: int, schema: str = "") -> str:
        if version == NEXT:
            return (UPGRADES[kind] + more).replace("$schema", schema)
        return script(version, schema) if schema else script(version)

    set_attribute(tables, "_script", newer)
    set_attribute(tables, "VERSION", NEXT)
