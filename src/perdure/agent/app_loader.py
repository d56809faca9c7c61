"""Finding the agent that a person names on the command line: a module or a file of theirs, and a name in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.errors import InvalidInput, PerdureError, an

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import ModuleType

    from perdure.agent.agent import Agent

NAME = "agent"
"""What is looked for in a module when no name is given."""


class App(NamedTuple):
    """What a person has named to run sessions with."""

    place: str
    """The module or file."""
    usual: Agent | None
    """The agent that is meant where a session names none of its own; None where there are several to choose from."""
    agents: tuple[Agent, ...]
    """All that can be meant: those of the place, who works for them, and whom they can hand a conversation to."""
    name: str = ""
    """The name in it that was said; then nobody else is meant, whatever a session names."""
    found: str = ""
    """What lies there instead of an agent, where that is so."""
    there: str = ""
    """Which agents can be named there, for people."""

    def agent(self, of_session: str = "") -> Agent:
        """The agent for a session that is one of the agent of this name ("": of none yet).

        One that the session names and that is not here leaves it to nobody: another one takes it over by name only.
        """
        usual = self.usual
        if self.name or not of_session or (usual is not None and usual.name == of_session):
            return self._usual()
        same = [agent for agent in self.agents if agent.name == of_session]
        if len(same) > 1:
            raise _two_called(self.place, of_session)
        if same:
            return same[0]
        raise InvalidInput(
            f"it is a session of agent {of_session!r:.80}, which {self.place} does not have: name a program that has "
            f"it. To give it to another agent, {self.there}"
        )

    def others(self, agent: Agent) -> tuple[Agent, ...]:
        """Who else may get the conversation of that one by name; of two with one name nobody can tell who is meant."""
        names = Counter(one.name for one in self.agents)
        return tuple(one for one in self.agents if one.name != agent.name and names[one.name] == 1 and not self.name)

    def _usual(self) -> Agent:
        if self.usual is None:
            raise InvalidInput(f"{self.place} {self.found}, where an agent was looked for: {self.there}")
        return self.usual


def load_for_sessions(text: str) -> App:
    """What ``app.py``, ``app``, ``app:name`` or ``folder/app.py:name`` has to run sessions with.

    The person's own code is run, because they said so: nothing stored ever names what is loaded. Which of the agents
    that it has goes on with a session, the session's own name of its agent may say.
    """
    from perdure.agent.agent import Agent
    from perdure.agent.children import reachable

    place, name = _parts(text)
    module = _loaded(place)
    found = _usual(module, name, Agent)
    what = f"has no {name or NAME!r}" if found is None else f"has {an(type(found).__name__)} there"
    usual = found if isinstance(found, Agent) else None
    here = [usual] if usual is not None else []
    if not name:
        here += [agent for value in vars(module).values() for agent in _several(value) if isinstance(agent, Agent)]
    app = App(place, usual, tuple(reachable(*here)), name, what, _there(place, vars(module), Agent))
    # With no agent at all, or not the one that was named, no session can be run.
    return app if app.agents else app._replace(usual=app.agent())


def load_agent(text: str) -> Agent:
    """The agent in ``app.py``, ``app``, ``app:name`` or ``folder/app.py:name``; modules are looked for here first."""
    return load_for_sessions(text).agent()


def load_agents(text: str) -> list[Agent]:
    """Every agent in ``app.py`` or ``app``, also in lists and dicts, by other names; ``app:name``: that one alone."""
    from perdure.agent.agent import Agent

    place, name = _parts(text)
    if name:
        return [load_agent(text)]
    found: dict[str, Agent] = {}
    for value in vars(_loaded(place)).values():
        for agent in (a for a in _several(value) if isinstance(a, Agent)):
            if found.setdefault(agent.name, agent) is not agent:
                raise _two_called(place, agent.name)
    if not found:
        raise InvalidInput(
            f"{place} has no agent in it: make one with perdure.Agent(...), in a variable, a list or a dict"
        )
    return list(found.values())


def _there(place: str, values: dict[str, Any], kind: type[Agent]) -> str:
    """The agents of a place by the names they have there, or what one is."""
    named = [name for name, value in values.items() if isinstance(value, kind)]
    if named:
        return f"name it, as {' or '.join(f'{place}:{name}' for name in named)}"
    inside = {agent.name for value in values.values() for agent in _several(value) if isinstance(agent, kind)}
    if inside:
        return (
            f"it has {', '.join(sorted(inside))} in lists or dicts, and none has a name of its own: write agent = ..."
        )
    return f"it has none. What counts is {an(kind.__name__)}(...) in a variable of the module, a list or a dict"


def _two_called(place: str, name: str) -> InvalidInput:
    return InvalidInput(f"{place} has two agents called {name!r}: give one another name")


def _several(value: Any) -> Sequence[Any]:
    """What a variable has in it: itself, or what a list, tuple or dict of it holds."""
    held: object = tuple(cast("dict[Any, Any]", value).values()) if isinstance(value, dict) else value
    return cast("Sequence[Any]", held) if isinstance(held, (list, tuple)) else (held,)


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
    return place, name, _usual(_loaded(place), name, kind)


def _usual(module: ModuleType, name: str, kind: type[Any]) -> Any:
    found = getattr(module, name or NAME, None)
    if found is None and not name:
        every = [value for value in vars(module).values() if isinstance(value, kind)]
        found = every[0] if len(every) == 1 else None
    return found


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
        if not isinstance(e, ModuleNotFoundError) or not f"{place}.".startswith(f"{e.name}."):
            what = f"install {e.name}" if isinstance(e, ModuleNotFoundError) else "install what has it"
            raise InvalidInput(f"{place} cannot be loaded: {e} ({_place_of(e)}): {what}, or mend that line") from e
        raise InvalidInput(f"{place} cannot be imported ({e}): name a Python file or module of yours") from e
    except (Exception, SystemExit) as e:
        said = e.msg if isinstance(e, SyntaxError) else " ".join(str(e).split())[:300]
        raise InvalidInput(
            f"{place} cannot be loaded: {type(e).__name__}{f': {said}' if said else ''} ({_place_of(e)}); "
            "PERDURE_DEBUG=1 shows more"
        ) from e


def _place_of(error: BaseException) -> str:
    """The file and line in which a program went wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
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
