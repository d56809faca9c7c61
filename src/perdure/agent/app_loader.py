"""Finding the agent that a person names on the command line: a module or a file of theirs, and a name in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput, PerdureError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import ModuleType

    from perdure.agent.agent import Agent

NAME = "agent"
"""What is looked for in a module when no name is given."""


def load_agent(text: str) -> Agent:
    """The agent in ``app.py``, ``app``, ``app:name`` or ``folder/app.py:name``; modules are looked for here first.

    The person's own code is run, because they said so: nothing stored ever names what is loaded.
    """
    from perdure.agent.agent import Agent

    place, name, found = _found(text, Agent)
    if not isinstance(found, Agent):
        what = f"has no {name or NAME!r}" if found is None else f"has a {type(found).__name__} there"
        raise InvalidInput(f"{place} {what}, where an agent was looked for: name it, such as {place}:support")
    return found


def load_agents(text: str) -> list[Agent]:
    """Every agent in ``app.py`` or ``app``, also in lists and by other names; with ``app:name`` that one alone."""
    from perdure.agent.agent import Agent

    place, name = _parts(text)
    if name:
        return [load_agent(text)]
    found: dict[str, Agent] = {}
    for value in vars(_loaded(place)).values():
        for agent in (a for a in _several(value) if isinstance(a, Agent)):
            if found.setdefault(agent.name, agent) is not agent:
                raise InvalidInput(f"{place} has two agents called {agent.name!r}: give one another name")
    if not found:
        raise InvalidInput(f"{place} has no agent in it: make one with perdure.Agent(...)")
    return list(found.values())


def _several(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)


def _parts(text: str) -> tuple[str, str]:
    """What to load, and the name in it ("" for the usual one).

    >>> _parts("app"), _parts("app:desk"), _parts("my/app.py:desk")
    (('app', ''), ('app', 'desk'), ('my/app.py', 'desk'))
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    if os.path.isfile(f"{place}.py") and os.sep in place:
        place = f"{place}.py"
    return place, name


def _found(text: str, kind: type[Any]) -> tuple[str, str, Any]:
    """What was named, with its place and name: the usual name, or the only one of its kind, where none is given."""
    place, name = _parts(text)
    module = _loaded(place)
    found = getattr(module, name or NAME, None)
    if found is None and not name:
        every = [value for value in vars(module).values() if isinstance(value, kind)]
        found = every[0] if len(every) == 1 else None
    return place, name, found


def _loaded(path: str) -> ModuleType:
    """The program in a file, or the module of that name."""
    if not path.endswith(".py"):
        return load_module(path)
    if not os.path.isfile(path):
        raise InvalidInput(f"there is no file {path}: name a Python file or module with an agent in it")
    folder = os.path.dirname(os.path.abspath(path))
    # As if it had been started: what lies beside it can be imported.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _running(path):
        spec.loader.exec_module(module)
    return module


def load_module(name: str) -> ModuleType:
    """A module of the person's own; those in this folder come first."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"{name!r:.80} is no name of a module: name one, such as app, or a file, such as app.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _running(name):
        return importlib.import_module(name)


@contextlib.contextmanager
def _running(place: str) -> Generator[None]:
    """Load a program of the person who asked: what is wrong with it is told in one line, with where it is."""
    try:
        yield
    except PerdureError:
        raise
    except ImportError as e:
        raise InvalidInput(f"{place} cannot be imported ({e}): name a Python file or module of yours") from e
    except (Exception, SystemExit) as e:
        said = " ".join(str(e).split())[:300]
        raise InvalidInput(
            f"{place} cannot be loaded: {type(e).__name__}{f': {said}' if said else ''} ({_place_of(e)}); "
            "PERDURE_DEBUG=1 shows more"
        ) from e


def _place_of(error: BaseException) -> str:
    """The file and line in which a program went wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else "nobody knows where"


def load_app(text: str) -> Agent | Callable[..., Any]:
    """An agent, or with ``app:name`` also a function that works on a database it is given."""
    from perdure.agent.agent import Agent

    place, name, found = _found(text, Agent)
    if isinstance(found, Agent) or callable(found):
        return found
    raise InvalidInput(
        f"{place} has no {name or NAME!r} that is an agent or a function of a database: name one, such as {place}:work"
    )
