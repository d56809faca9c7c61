"""Compiles what is written in C; without a compiler perdure works, and says what it cannot promise then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/perdure/stores/sqlite/own_locks.c"
# Python would take a library of the name of a module for that module.
BUILT = "src/perdure/stores/sqlite/libown_locks.so"


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled library to a wheel, or lays it beside its source for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is put together."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        # Its locks are Linux's; elsewhere there is nothing to compile.
        if compiler is None or not sys.platform.startswith("linux"):
            self.app.display_warning("no C compiler: the locks of SQLite's files will be the weaker ones")
            return
        command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", BUILT + ".new", SOURCE]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"the locks of SQLite's files will be the weaker ones: {done.stderr.strip()}")
            return
        os.replace(os.path.join(self.root, BUILT + ".new"), os.path.join(self.root, BUILT))
        build_data["artifacts"].append(BUILT)
        build_data["pure_python"] = False
        # Plain C without Python's own interface: one build serves every Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
